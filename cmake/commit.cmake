# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=... -D IN=... -D OUT=... -P commit.cmake: copies a file, with @COMMIT@ as the
# commit that is checked out.
execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
configure_file(${IN} ${OUT} @ONLY)
file(TOUCH ${OUT})
