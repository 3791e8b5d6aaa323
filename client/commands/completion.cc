#include "client/commands/completion.h"

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr char kFormats[] = "table json jsonl csv quiet";
// Names come from the coordinator; a shell must not hang or show errors when there is none.
constexpr char kNames[] = "switchyard ls --all --timeout 2 -o quiet 2>/dev/null";

std::string ShellQuote(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string Names(const std::vector<VerbWords>& verbs) {
  std::string out;
  for (const VerbWords& verb : verbs) out += StrCat(out.empty() ? "" : " ", verb.name);
  return out;
}

std::string Bash(const std::vector<VerbWords>& verbs) {
  std::string cases;
  for (const VerbWords& verb : verbs) {
    cases += StrCat("    ", verb.name, ")\n      options=\"", StrJoin(verb.options, " "), "\"\n");
    if (verb.takes_file) cases += "      kind=file\n";
    if (verb.takes_name) cases += "      kind=name\n";
    if (!verb.subverbs.empty()) {
      cases += StrCat("      kind=\"", StrJoin(verb.subverbs, " "), "\"\n");
    }
    cases += "      ;;\n";
  }
  return StrCat(
      "# bash completion for switchyard; use: source <(switchyard completion bash)\n"
      "_switchyard() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local verb= options= kind= i\n"
      "  COMPREPLY=()\n"
      "  case $previous in\n"
      "    -o|--output) COMPREPLY=($(compgen -W \"",
      kFormats,
      "\" -- \"$current\")); return ;;\n"
      "    --server) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n"
      "  esac\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      -o|--output|--server|--timeout) ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) verb=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $verb in\n"
      "    \"\") kind=\"",
      Names(verbs), "\"; options=\"--help --server --timeout -o --output\" ;;\n", cases,
      "  esac\n"
      "  if [[ $current == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
      "  elif [[ $kind == file ]]; then\n"
      "    compopt -o filenames 2>/dev/null\n"
      "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  elif [[ $kind == name ]]; then\n"
      "    COMPREPLY=($(compgen -W \"last $(",
      kNames,
      ")\" -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -W \"$kind\" -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -F _switchyard switchyard\n");
}

std::string Zsh(const std::vector<VerbWords>& verbs) {
  std::string list;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    list += StrCat("    ", ShellQuote(StrCat(verb.name, ":", verb.summary)), "\n");
    cases += StrCat("    ", verb.name, ")\n      options=(", StrJoin(verb.options, " "), ")\n");
    if (verb.takes_file) cases += "      kind=file\n";
    if (verb.takes_name) cases += "      kind=name\n";
    if (!verb.subverbs.empty()) {
      cases += StrCat("      kind=words; some=(", StrJoin(verb.subverbs, " "), ")\n");
    }
    cases += "      ;;\n";
  }
  return StrCat(
      "#compdef switchyard\n"
      "# zsh completion for switchyard; use: source <(switchyard completion zsh)\n"
      "_switchyard() {\n"
      "  local verb= kind= i\n"
      "  local -a verbs options some\n"
      "  verbs=(\n",
      list,
      "  )\n"
      "  case ${words[CURRENT-1]} in\n"
      "    -o|--output) compadd ",
      kFormats,
      "; return ;;\n"
      "    --server) _files; return ;;\n"
      "  esac\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    case ${words[i]} in\n"
      "      -o|--output|--server|--timeout) ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) verb=${words[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $verb in\n"
      "    \"\") options=(--help --server --timeout -o --output) ;;\n",
      cases,
      "  esac\n"
      "  if [[ ${words[CURRENT]} == -* ]]; then\n"
      "    compadd -- $options\n"
      "  elif [[ -z $verb ]]; then\n"
      "    _describe verb verbs\n"
      "  elif [[ $kind == file ]]; then\n"
      "    _files\n"
      "  elif [[ $kind == name ]]; then\n"
      "    compadd -- last ${(f)\"$(",
      kNames,
      ")\"}\n"
      "  elif [[ $kind == words ]]; then\n"
      "    compadd -- $some\n"
      "  fi\n"
      "}\n"
      "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _switchyard \"$@\"; "
      "else compdef _switchyard switchyard; fi\n");
}

std::string Fish(const std::vector<VerbWords>& verbs) {
  std::string out =
      "# fish completion for switchyard; use: switchyard completion fish | source\n"
      "complete -c switchyard -f\n";
  out += StrCat("complete -c switchyard -s o -l output -x -a '", kFormats, "'\n");
  out += "complete -c switchyard -l server -r\ncomplete -c switchyard -l timeout -x\n";
  for (const VerbWords& verb : verbs) {
    out += StrCat("complete -c switchyard -n __fish_use_subcommand -a ", verb.name, " -d ",
                  ShellQuote(verb.summary), "\n");
    const std::string when =
        StrCat("complete -c switchyard -n '__fish_seen_subcommand_from ", verb.name, "' ");
    for (const std::string& option : verb.options) {
      if (option == "-o" || option == "--output" || option == "--server" || option == "--timeout") {
        continue;  // Known everywhere.
      }
      const bool is_long = option.size() > 2;
      out += StrCat(when, is_long ? "-l " : "-s ", option.substr(is_long ? 2 : 1), "\n");
    }
    if (verb.takes_file) out += when + "-F\n";
    if (verb.takes_name) out += StrCat(when, "-a '(", kNames, "; echo last)'\n");
    if (!verb.subverbs.empty()) out += StrCat(when, "-a '", StrJoin(verb.subverbs, " "), "'\n");
  }
  return out;
}

}  // namespace

std::string CompletionScript(std::string_view shell, const std::vector<VerbWords>& verbs) {
  if (shell == "bash") return Bash(verbs);
  if (shell == "zsh") return Zsh(verbs);
  if (shell == "fish") return Fish(verbs);
  return {};
}

}  // namespace switchyard::client
