# SPDX-License-Identifier: BSD-2-Clause
# CPack runs this script over the staged files of the packages. It makes the
# changes that Debian's policy requires and a plain `cmake --install` does not.
file(GLOB_RECURSE pages ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/*.[1-9])
foreach(page ${pages})
    execute_process(COMMAND gzip -9n ${page} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# Each package gets a changelog with one entry; the project's own changelog
# lists the changes.
execute_process(COMMAND date -R -u -d @0 OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
if(DEFINED ENV{SOURCE_DATE_EPOCH})
    execute_process(COMMAND date -R -u -d @$ENV{SOURCE_DATE_EPOCH} OUTPUT_VARIABLE date
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
file(GLOB_RECURSE copyrights ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/copyright)
foreach(copyright ${copyrights})
    get_filename_component(folder ${copyright} DIRECTORY)
    file(WRITE ${folder}/changelog
         "gpunvmefs (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n"
         "  * Packages made by CPack; see CHANGELOG.md of the project.\n\n"
         " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
    execute_process(COMMAND gzip -9n ${folder}/changelog COMMAND_ERROR_IS_FATAL ANY)
endforeach()
