# SPDX-License-Identifier: BSD-2-Clause
include(CMakePackageConfigHelpers)

# gpunvme_unit(SOURCE) installs SOURCE, whose name ends in .in, as a unit of
# systemd. It names the program below the prefix of `cmake --install --prefix`,
# which is known only when that runs.
function(gpunvme_unit source)
    get_filename_component(unit ${source} NAME_WLE)
    get_filename_component(source ${source} ABSOLUTE)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${unit})
    install(CODE "
        get_filename_component(bindir \"${CMAKE_INSTALL_BINDIR}\" ABSOLUTE
                               BASE_DIR \"\${CMAKE_INSTALL_PREFIX}\")
        configure_file(\"${source}\" \"${out}\" @ONLY)
        file(INSTALL \"${out}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")")
endfunction()

# gpunvme_public_library(TARGET HEADERS ... [DESCRIPTION ...]) installs a shared
# library for other projects: the library, its headers, TARGET.pc for
# pkg-config, and a CMake package that defines gpunvme::TARGET. The headers must
# not include files of this tree by folder name.
function(gpunvme_public_library target)
    cmake_parse_arguments(ARG "" "OUTPUT_NAME;DESCRIPTION" "HEADERS" ${ARGN})
    if(NOT ARG_OUTPUT_NAME)
        set(ARG_OUTPUT_NAME gpunvme)
    endif()
    set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpunvme)
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${ARG_OUTPUT_NAME}
        EXPORT_NAME ${ARG_OUTPUT_NAME}
        VERSION ${PROJECT_VERSION}
        SOVERSION ${PROJECT_VERSION_MAJOR}
        INSTALL_RPATH "")
    target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    install(FILES ${ARG_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gpunvme)
    install(TARGETS ${target} EXPORT gpunvmeTargets
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT gpunvmeTargets NAMESPACE gpunvme:: DESTINATION ${package_dir})

    configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gpunvmeConfig.cmake.in
                                  ${PROJECT_BINARY_DIR}/gpunvmeConfig.cmake
                                  INSTALL_DESTINATION ${package_dir})
    write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpunvmeConfigVersion.cmake
                                     COMPATIBILITY SameMinorVersion)
    install(FILES ${PROJECT_BINARY_DIR}/gpunvmeConfig.cmake
                  ${PROJECT_BINARY_DIR}/gpunvmeConfigVersion.cmake
            DESTINATION ${package_dir})

    # The path is relative to the .pc file, so that it is correct under any
    # `cmake --install --prefix`.
    file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
    string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
    configure_file(${PROJECT_SOURCE_DIR}/cmake/gpunvme.pc.in
                   ${PROJECT_BINARY_DIR}/gpunvme.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/gpunvme.pc
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# gpunvme_device_headers(HEADER...) installs headers of device code, named from
# the top of the tree. Those of include/gpunvme are installed with the other
# public headers, and the rest below them with their folders. Includes are
# written from the top of the tree here. In the installed headers they are
# relative to the file, so that nvcc finds them with only one include folder.
function(gpunvme_device_headers)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/include)
    foreach(header ${ARGN})
        if(header MATCHES "^include/(gpunvme/.*)")
            set(installed ${CMAKE_MATCH_1})
            set(to_tree .)
        else()
            set(installed gpunvme/${header})
            get_filename_component(folder ${header} DIRECTORY)
            file(RELATIVE_PATH to_tree ${PROJECT_SOURCE_DIR}/${folder} ${PROJECT_SOURCE_DIR})
            string(REGEX REPLACE "/$" "" to_tree "${to_tree}")
        endif()
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                     ${PROJECT_SOURCE_DIR}/${header})
        file(READ ${PROJECT_SOURCE_DIR}/${header} text)
        string(REPLACE "#include \"gpunvme/" "#include \"${to_tree}/" text "${text}")
        string(REGEX REPLACE "#include \"([a-z_]+/)" "#include \"${to_tree}/\\1" text "${text}")
        file(WRITE ${out}/${installed} "${text}")
    endforeach()
    install(DIRECTORY ${out}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()
