#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "client/plot/figure.h"
#include "common/base/status.h"

namespace switchyard::client {

struct Canvas {
  enum class Kind { kSvg, kPng };
  Kind kind = Kind::kSvg;
  uint64_t width = 960;  // pixels
  uint64_t height = 540;
};

// `text` as a string constant of gnuplot. Every byte that is not a plain letter, digit or blank is
// written as an octal escape, so that nothing in it can be a command, a substitution or markup.
std::string GnuplotString(std::string_view text);

// The program that draws the figure: numbers and GnuplotString, besides fixed words.
std::string GnuplotScript(const Figure& figure, const Canvas& canvas);

// What gnuplot writes for the script. kFailedPrecondition: there is no gnuplot; kInternal: it
// refused the script or found nothing to draw; kDeadlineExceeded: it took over a minute.
Result<std::string> RunGnuplot(const std::string& script);

// Both: the picture.
Result<std::string> Draw(const Figure& figure, const Canvas& canvas);

}  // namespace switchyard::client
