#include "client/commands/context.h"

#include "client/exit_code.h"
#include "common/base/strings.h"

namespace switchyard::client {

Result<std::unique_ptr<Connection>> Context::Connect() const {
  SWITCHYARD_ASSIGN_OR_RETURN(ServerChoice choice, ChooseServer(server, getenv));
  return std::make_unique<Connection>(
      std::move(choice), timeout_seconds, Outbox(Outbox::DefaultFolder(getenv)), [this] {
        Note(
            "note: the same request was sent before and its answer was lost; it is not made twice");
      });
}

void Context::Print(std::string_view text) const { *console.out << text << std::flush; }

void Context::Note(std::string_view text) const {
  *console.err << EscapeForTerminal(text) << '\n' << std::flush;
}

int Context::Fail(const Status& status) const {
  *console.err << "switchyard: " << EscapeForTerminal(status.message()) << " ["
               << CodeName(status.code()) << "]\n"
               << std::flush;
  return ExitCodeOf(status);
}

void Context::Show(const Listing& listing) const {
  Print(RenderListing(listing, format, console.table_width()));
}

}  // namespace switchyard::client
