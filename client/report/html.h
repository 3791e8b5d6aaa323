#pragma once

#include <string>
#include <string_view>

#include "client/output/table.h"
#include "common/base/status.h"

// Pieces of an HTML page. Everything that comes from outside passes EscapeHtml or InlineSvg.
namespace switchyard::client {

// Foreign text as HTML text or as the value of an attribute in double quotes: & < > " ' are
// entities, and what EscapeForTerminal makes visible is visible here too. Line feeds and tabs stay.
std::string EscapeHtml(std::string_view text);

// "<h2 id=...>": `text` is escaped; `id` is ours.
std::string Heading(int level, std::string_view text, std::string_view id = {});

// The columns with a title, as the terminal's table shows them. Without rows: the empty note.
std::string HtmlTable(const Listing& listing);

// A picture of gnuplot's as an element of a page: without the XML heading, its ids prefixed so that
// several stand on one page. kInternal: it holds an element or attribute that a drawing has no use
// for (scripts, foreign content, event handlers, links to other places).
Result<std::string> InlineSvg(std::string_view svg, std::string_view id_prefix);

// A whole page: `body` is HTML already. No script may run in it and nothing is loaded.
std::string HtmlPage(std::string_view title, std::string_view body);

}  // namespace switchyard::client
