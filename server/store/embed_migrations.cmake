# Writes the files of migrations/ as one C++ source. Run at configuration, again when a file changes.
function(switchyard_embed_migrations out)
  file(GLOB files CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/migrations/*.sql")
  list(SORT files)
  set(entries "")
  set(version 0)
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    math(EXPR version "${version} + 1")
    get_filename_component(name "${file}" NAME_WE)
    if(NOT name MATCHES "^0*${version}_")
      message(FATAL_ERROR "migrations: ${name} is not number ${version}")
    endif()
    file(READ "${file}" text)
    string(APPEND entries "    {.version = ${version}, .name = \"${name}\", .sql = R\"~sql~(${text})~sql~\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${out}" CONTENT [=[
#include "server/store/migrator.h"

namespace switchyard::store {
namespace {

constexpr Migration kMigrations[] = {
@entries@};

}  // namespace

std::span<const Migration> EmbeddedMigrations() { return kMigrations; }

}  // namespace switchyard::store
]=] @ONLY)
endfunction()
