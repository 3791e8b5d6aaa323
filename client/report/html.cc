#include "client/report/html.h"

#include <algorithm>
#include <array>

#include "client/output/text.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kLongCells = 48;  // text that may be broken

constexpr char kStyle[] = R"css(
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1f2933; background: #fff; margin: 0 auto;
       max-width: 1080px; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 36px 0 8px; border-bottom: 1px solid #d9e2ec; padding-bottom: 4px; }
h3 { font-size: 16px; margin: 20px 0 6px; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; }
nav a { margin-right: 14px; color: #0b69a3; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; }
th, td { padding: 3px 12px 3px 0; text-align: left; vertical-align: top; white-space: pre; }
td.long { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 240px; }
th { border-bottom: 2px solid #bcccdc; font-weight: 600; }
td { border-bottom: 1px solid #e4e7eb; }
th.number, td.number { text-align: right; }
figure { margin: 12px 0 24px; }
figure svg { max-width: 100%; height: auto; }
figcaption, .note { color: #52606d; font-size: 13px; }
.warning { background: #fff3c4; padding: 6px 10px; border-radius: 4px; }
pre { background: #f5f7fa; padding: 12px; overflow-x: auto; font-size: 13px; }
details { margin: 6px 0; }
summary { cursor: pointer; }
@media print { nav { display: none; } details { display: block; } }
)css";

std::string_view EntityOf(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

std::string Entities(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const std::string_view entity = EntityOf(c);
    if (entity.empty()) {
      out += c;
    } else {
      out += entity;
    }
  }
  return out;
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == ':' || c == '.';
}

// One tag of a drawing, copied with prefixed ids.
class TagCopier {
 public:
  TagCopier(std::string_view tag, std::string_view prefix) : tag_(tag), prefix_(prefix) {}

  // `tag` is what stands between < and >.
  Result<std::string> Copy() {
    if (Take('/')) out_ += '/';
    const std::string_view name = Name();
    if (!IsDrawing(name)) return Refuse("element", name);
    out_ += name;
    while (at_ < tag_.size()) {
      if (!IsNameCharacter(tag_[at_])) {
        if (std::string_view(" \t\r\n/").find(tag_[at_]) == std::string_view::npos) {
          return Internal("the drawing has a tag that is not well formed");
        }
        out_ += tag_[at_++];
        continue;
      }
      const std::string_view attribute = Name();
      if (attribute.starts_with("on") || attribute == "src" || attribute == "href") {
        return Refuse("attribute", attribute);
      }
      out_ += attribute;
      if (!TakeEquals()) continue;
      out_ += '=';
      SWITCHYARD_RETURN_IF_ERROR(CopyValue(attribute));
    }
    return std::move(out_);
  }

 private:
  static bool IsDrawing(std::string_view name) {
    static constexpr std::array<std::string_view, 20> kNames = {
        "svg",     "title",  "desc",     "g",           "defs",     "rect",   "circle",
        "ellipse", "line",   "path",     "polygon",     "polyline", "text",   "tspan",
        "use",     "filter", "clipPath", "feComposite", "feFlood",  "feMerge"};
    return std::ranges::find(kNames, name) != kNames.end();
  }

  static Status Refuse(std::string_view what, std::string_view name) {
    return Internal(StrCat("the drawing has an ", what, " \"", name, "\", which is not expected"));
  }

  bool Take(char c) {
    if (at_ >= tag_.size() || tag_[at_] != c) return false;
    ++at_;
    return true;
  }

  // The sign between name and value, with the blanks around it that gnuplot's polygons have.
  bool TakeEquals() {
    const size_t sign = tag_.find_first_not_of(" \t\r\n", at_);
    if (sign == std::string_view::npos || tag_[sign] != '=') return false;
    at_ = std::min(tag_.find_first_not_of(" \t\r\n", sign + 1), tag_.size());
    return true;
  }

  std::string_view Name() {
    const size_t begin = at_;
    while (at_ < tag_.size() && IsNameCharacter(tag_[at_])) ++at_;
    return tag_.substr(begin, at_ - begin);
  }

  Status CopyValue(std::string_view attribute) {
    if (at_ >= tag_.size() || (tag_[at_] != '"' && tag_[at_] != '\'')) {
      return Internal("the drawing has an attribute without quotation marks");
    }
    const char mark = tag_[at_++];
    const size_t end = tag_.find(mark, at_);
    if (end == std::string_view::npos) return Internal("the drawing has an unclosed attribute");
    const std::string_view value = tag_.substr(at_, end - at_);
    at_ = end + 1;
    out_ += mark;
    if (attribute == "id") {
      out_ += StrCat(prefix_, value);
    } else if (attribute == "xlink:href") {
      if (!value.starts_with("#")) return Refuse("link", value);
      out_ += StrCat("#", prefix_, value.substr(1));
    } else if (const size_t url = value.find("url("); url != std::string_view::npos) {
      if (value.substr(url, 5) != "url(#") return Refuse("link", value);
      out_ += StrCat(value.substr(0, url), "url(#", prefix_, value.substr(url + 5));
    } else {
      out_ += value;
    }
    out_ += mark;
    return OkStatus();
  }

  const std::string_view tag_;
  const std::string_view prefix_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != '\n' && text[i] != '\t') continue;
    out += Entities(EscapeForTerminal(text.substr(begin, i - begin)));
    if (i < text.size()) out += text[i];
    begin = i + 1;
  }
  return out;
}

std::string Heading(int level, std::string_view text, std::string_view id) {
  return StrCat("<h", level, id.empty() ? "" : StrCat(" id=\"", id, "\""), ">", EscapeHtml(text),
                "</h", level, ">\n");
}

std::string HtmlTable(const Listing& listing) {
  if (listing.rows.empty())
    return StrCat("<p class=\"note\">", EscapeHtml(listing.empty_note), "</p>\n");
  const auto cell = [&](const char* tag, size_t column, const std::string& text) {
    std::string_view look;
    if (listing.columns[column].align == Align::kRight) {
      look = " class=\"number\"";
    } else if (CellWidth(text) > kLongCells) {
      look = " class=\"long\"";
    }
    return StrCat("<", tag, look, ">", EscapeHtml(text), "</", tag, ">");
  };
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (size_t c = 0; c < listing.columns.size(); ++c) {
    if (listing.columns[c].title.empty()) continue;
    out += cell("th", c, listing.columns[c].title);
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : listing.rows) {
    out += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      if (listing.columns[c].title.empty()) continue;
      out += cell("td", c, row[c].shown.empty() ? row[c].value.ToText() : row[c].shown);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

Result<std::string> InlineSvg(std::string_view svg, std::string_view id_prefix) {
  const size_t begin = svg.find("<svg");
  const size_t end = svg.rfind("</svg>");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) {
    return Internal("the drawing is no SVG");
  }
  svg = svg.substr(begin, end + 6 - begin);
  std::string out;
  for (size_t at = 0; at < svg.size();) {
    const size_t open = svg.find('<', at);
    out += svg.substr(at, open == std::string_view::npos ? open : open - at);
    if (open == std::string_view::npos) break;
    if (svg.substr(open).starts_with("<!--")) {
      const size_t close = svg.find("-->", open);
      if (close == std::string_view::npos) return Internal("the drawing has an unclosed comment");
      at = close + 3;
      continue;
    }
    // Values of attributes may hold the closing sign.
    size_t close = open + 1;
    char mark = 0;
    while (close < svg.size() && (mark != 0 || svg[close] != '>')) {
      const char c = svg[close++];
      if (mark != 0) {
        if (c == mark) mark = 0;
      } else if (c == '"' || c == '\'') {
        mark = c;
      }
    }
    if (close == svg.size()) return Internal("the drawing has an unclosed tag");
    TagCopier copier(svg.substr(open + 1, close - open - 1), id_prefix);
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string tag, copier.Copy());
    out += StrCat("<", tag, ">");
    at = close + 1;
  }
  return out;
}

std::string HtmlPage(std::string_view title, std::string_view body) {
  return StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>",
      EscapeHtml(title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n", body,
      "</body>\n</html>\n");
}

}  // namespace switchyard::client
