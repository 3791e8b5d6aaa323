#!/usr/bin/env python3
"""Writes docs/spec-reference.md from the comments of proto/switchyard/v1/spec.proto.

    spec_reference.py            rewrite the page
    spec_reference.py --check    exit 1, with a diff, when the page is not what would be written
"""

import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto/switchyard/v1/spec.proto"
PAGE = ROOT / "docs/spec-reference.md"

# Not in the file that a person writes.
SKIPPED_MESSAGES = {"AttemptSpec", "Value", "ValueList", "ValueMap", "ValueEntry", "SetEntry",
                    "InputSpec"}
SKIPPED_FIELDS = {("SweepSpec", "policy"), ("SweepSpec", "sets"), ("RunSpec", "seed"),
                  ("RunSpec", "numerics_class"), ("RunSpec", "inputs"), ("InitSpec", "step"),
                  ("InitSpec", "digest"), ("SpaceSpec", "order"), ("StageSpec", "policy")}
SECTIONS = {"RunSpec": "One run: the fields of `base`", "SweepSpec": "The sweep file"}
SCALARS = {"string": "text", "double": "number", "bool": "true or false", "uint32": "whole number",
           "uint64": "whole number", "int32": "whole number, may be negative"}

HEAD = """# The sweep file, field by field

This page is generated from the comments of `proto/switchyard/v1/spec.proto` by
`tests/tools/spec_reference.py`; edit those. A field that is left out has the default named here.

- Types come from the field: `3e-4`, `3E-04` and `0.0003` are one number, `2e6` is a whole number
  where one is wanted, `name: no` is text. Booleans are `true` and `false` only.
- Sizes take `Ki`, `Mi`, `Gi`, `Ti` (powers of 1024); durations are a number with `ms`, `s`, `m`, `h`
  or `d`.
- "One of" is a mapping with one key: `router: {hash: {balanced: true}}`. Without options,
  `{hash: {}}`, `{kind: hash}` and the word `hash` are the same.
- Named lists are mappings from names: `losses: {z_loss: {coef: 1e-3}}`, or lists whose elements have
  an `id`.
- Refused: unknown keys, keys given twice, null, anchors, aliases, tags, merge keys, tabs in the
  indentation, more than one document, 1 MiB, 64 levels or 100,000 nodes.
- Laid over each other, later ones winning: defaults, `preset`, `base`, `--set PATH=VALUE`, axes.
  Paths are dotted (`train.optimizer.adam.lr`); `.kind` selects one of several
  (`model.moe.router.kind`); named elements go by their name (`model.moe.losses.z_loss.coef`).
- A field that a cell's kinds cannot use is an error when an axis sets it, or when no cell can use it;
  in a cell among others it is dropped with a notice.
- A space is the product of its axes in file order, the last one fastest: each path of `grid`, each
  group of `zip`, each name of `choice`, each distribution. An alternative of a choice holds `set`,
  `match` and a space of its own, whose axes exist only under it.
- With stages, `space`, `replicates`, `strategy`, `early_stop` and `objective` stand in the stages. A
  stage with `needs` lies over its parents instead of over the `base` at the top.
  `--set STAGE:PATH=VALUE` reaches one stage.

## Expressions

`constraints` and `where` hold conditions:

| form | meaning |
|---|---|
| `model.moe.top_k`, `arm`, `seed` | a field with its default filled in, an axis |
| `valid/bits_per_byte`, `best(valid/loss)`, `last(valid/loss)` | a series; `a/b` is a series, `a / b` a division |
| `flops.active_per_token`, `train.flops`, `params.total`, `params.active` | computed from the model and the length |
| `-7.5e-05`, `"text"`, `true`, `false` | values; texts in quotes |
| `+ - * / %`, `min(..) max(..) abs(x) floor(x) ceil(x) log2(x)` | of numbers |
| `= == != < <= > >=`, `x in ["a", "b"]`, `not in` | comparisons; no order of texts |
| `and`, `or`, `not`, parentheses | |

A comparison with something that is absent, or with a number that is not finite, matches nothing,
however it is turned. A constraint that names something that a cell lacks does not apply to that cell.
"""


def words(name):
    return re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)


def parse(text):
    """Messages and enums in file order: (kind, name, comment, members)."""
    blocks, comment, block, oneof = [], [], None, None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("// ----") or line.startswith(("syntax", "package", "import")):
            comment = []
        elif line.startswith("//"):
            comment.append(line[2:].strip())
        elif not line:
            comment = []
        elif match := re.fullmatch(r"(message|enum) (\w+) \{(\})?", line):
            block = {"kind": match[1], "name": match[2], "comment": " ".join(comment),
                     "members": []}
            blocks.append(block)
            comment = []
            if match[3]:
                block = None
        elif match := re.fullmatch(r"oneof (\w+) \{", line):
            oneof, comment = match[1], []
        elif line == "}":
            if oneof:
                oneof = None
            else:
                block = None
            comment = []
        elif match := re.fullmatch(r"(?:(repeated|optional) )?([\w.]+) (\w+) = (\d+);", line):
            block["members"].append({"label": match[1] or "", "type": match[2], "name": match[3],
                                     "comment": " ".join(comment), "oneof": oneof})
            comment = []
        elif match := re.fullmatch(r"(\w+) = (\d+);", line):
            block["members"].append({"name": match[1], "comment": " ".join(comment)})
            comment = []
        else:
            sys.exit(f"{PROTO}:{number}: not understood: {raw}")
    return blocks


def enum_values(enum):
    prefix = enum["members"][0]["name"].removesuffix("UNSPECIFIED")
    return [(m["name"].removeprefix(prefix).lower(), m["comment"]) for m in enum["members"][1:]]


def cell(text):
    return text.replace("|", "\\|").strip()


def type_text(member, messages, enums):
    kind = member["type"]
    if member["name"].endswith("_ms"):
        text = "duration"
    elif member["name"].endswith("_bytes") and kind == "uint64":
        text = "size"
    elif kind in SCALARS:
        text = SCALARS[kind]
    elif kind in enums:
        text = ", ".join(f"`{name}`" for name, _ in enum_values(enums[kind]))
    elif kind == "Value":
        text = "any value of the field"
    elif kind == "ValueEntry":
        return "mapping from names to values"
    elif kind == "SetEntry":
        return "mapping from paths to values"
    else:
        text = f"[{words(kind)}](#{words(kind).lower().replace(' ', '-')})"
    if member["label"] == "repeated":
        named = kind in messages and any(m["name"] == "id" for m in messages[kind]["members"])
        text = f"named list of {text}" if named else f"list of {text}"
    return text


def message_section(message, messages, enums):
    lines = [f"\n### {words(message['name'])}\n"]
    if message["comment"]:
        lines.append(message["comment"] + "\n")
    members = [m for m in message["members"]
               if (message["name"], m["name"]) not in SKIPPED_FIELDS]
    if message["name"] == "SweepSpec":
        members += messages["PolicySpec"]["members"]
    if not members:
        lines.append("No options.\n")
        return lines
    lines += ["| field | type | meaning |", "|---|---|---|"]
    for member in members:
        name = member["name"].removesuffix("_ms").removesuffix("_bytes") \
            if member["type"] == "uint64" else member["name"]
        # The form of names would read as a link.
        comment = re.sub(r"(\[a-z0-9\]\(\S+\)\?)", r"`\1`", member["comment"]).replace(", milliseconds", "").replace("Milliseconds of w", "W").replace(", bytes", "")
        if member["oneof"]:
            comment = "One of the kinds. " + comment
        lines.append(f"| `{name}` | {cell(type_text(member, messages, enums))} | {cell(comment)} |")
    for member in members:
        enum = enums.get(member["type"])
        if enum and any(comment for _, comment in enum_values(enum)):
            lines.append(f"\nValues of `{member['name']}`:\n")
            for name, comment in enum_values(enum):
                lines.append(f"- `{name}`" + (f": {comment}" if comment else ""))
    lines.append("")
    return lines


def page():
    blocks = parse(PROTO.read_text(encoding="utf-8"))
    messages = {b["name"]: b for b in blocks if b["kind"] == "message"}
    enums = {b["name"]: b for b in blocks if b["kind"] == "enum"}
    order = [b["name"] for b in blocks if b["kind"] == "message"
             and b["name"] not in SKIPPED_MESSAGES | {"PolicySpec"}]
    first = order.index("SweepSpec")
    lines = [HEAD]
    for name in order[first:] + order[:first]:
        if name in SECTIONS:
            lines.append(f"## {SECTIONS[name]}")
        lines += message_section(messages[name], messages, enums)
    return "\n".join(lines).rstrip() + "\n"


def main():
    wanted = page()
    if sys.argv[1:] == ["--check"]:
        found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if found != wanted:
            sys.stdout.writelines(difflib.unified_diff(
                found.splitlines(True), wanted.splitlines(True), "committed", "generated"))
            sys.exit("docs/spec-reference.md is old: run tests/tools/spec_reference.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
