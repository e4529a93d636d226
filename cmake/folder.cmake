# SPDX-License-Identifier: BSD-2-Clause
# gpunvme_library(NAME SOURCES ... LINKS ...) defines the static library of a
# folder. LINKS is the complete list of the libraries that the folder may use.
function(gpunvme_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC ${ARG_LINKS})
endfunction()

# gpunvme_program(NAME SBIN SOURCES ... LINKS ...) defines a program, installed
# to bin or, with SBIN, to sbin. The target is prog_NAME, because a library may
# have the same name; the file is NAME.
function(gpunvme_program name)
    cmake_parse_arguments(ARG "SBIN" "" "SOURCES;LINKS" ${ARGN})
    set(target prog_${name})
    add_executable(${target} ${ARG_SOURCES})
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name})
    target_compile_definitions(${target} PRIVATE GPUNVME_VERSION="${PROJECT_VERSION}")
    target_link_libraries(${target} PRIVATE ${ARG_LINKS})
    if(ARG_SBIN)
        install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_SBINDIR})
    else()
        install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
endfunction()

# gpunvme_test_properties sets the properties of all tests. The folders are
# labels (tests/fusefs/daemon: "fusefs", "daemon"), to which LABELS adds more:
# "gpu" for a test that uses a CUDA device if there is one, "mount" for one that
# mounts through /dev/fuse, "threads" for one that also runs with
# ThreadSanitizer, because several threads of the code under test share memory,
# and "plain" for one that a build with a sanitizer lacks or runs only in part.
# A test may take five minutes unless TIMEOUT says more, with a sanitizer three
# times as long: threads that wait for each other on busy processors take fifty
# times as long as on idle ones. COST is the time in seconds of a test that
# takes more than ten.
function(gpunvme_test_properties name)
    cmake_parse_arguments(ARG "" "COST;TIMEOUT" "LABELS" ${ARGN})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 300)
    endif()
    if(GPUNVME_SANITIZE)
        math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 3")
    endif()
    file(RELATIVE_PATH folders ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
    string(REPLACE "/" ";" folders ${folders})
    list(APPEND ARG_LABELS ${folders})
    list(REMOVE_DUPLICATES ARG_LABELS)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
    # Long tests start first, so that none runs alone at the end. The rest is
    # ordered by the times that ctest has measured.
    if(ARG_COST)
        set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
    endif()
endfunction()

# gpunvme_test(NAME SOURCES ... LINKS ... [LABELS ...] [COST s] [TIMEOUT s]
# [WATCHDOG]) defines a GoogleTest program, which is one test of ctest. With
# WATCHDOG a test that hangs ends the program after 10 s. A build with sanitizers
# compiles the C++ sources as one. That takes two thirds of the time, because
# templates of gtest are instantiated once.
function(gpunvme_test name)
    cmake_parse_arguments(ARG "WATCHDOG" "COST;TIMEOUT" "SOURCES;LINKS;LABELS" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    if(ARG_WATCHDOG)
        target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/watchdog.cc)
    endif()
    target_link_libraries(${name} PRIVATE ${ARG_LINKS} GTest::gtest GTest::gtest_main)
    # gtest.h is precompiled once for all tests, which halves the time to compile
    # them. It is of no use to sources in other languages than C++.
    set(others ${ARG_SOURCES})
    list(FILTER others INCLUDE REGEX "\\.(c|cu)$")
    set_source_files_properties(${others} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                                SKIP_UNITY_BUILD_INCLUSION ON)
    set(units ${ARG_SOURCES})
    list(FILTER units INCLUDE REGEX "\\.cc$")
    list(LENGTH units count)
    if(GPUNVME_SANITIZE AND count GREATER 1)
        set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    endif()
    target_precompile_headers(${name} REUSE_FROM gtest_header)
    add_test(NAME ${name} COMMAND ${name})
    gpunvme_test_properties(${name} COST ${ARG_COST} TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS})
endfunction()

# gpunvme_script_test(NAME COMMAND ... [LABELS ...] [COST s] [TIMEOUT s])
# defines a test that is a script or another kind of program. Exit status 77
# means that it was skipped. Scripts in Python find the modules of tests/support.
function(gpunvme_script_test name)
    cmake_parse_arguments(ARG "" "COST;TIMEOUT" "COMMAND;LABELS" ${ARGN})
    add_test(NAME ${name} COMMAND ${ARG_COMMAND})
    gpunvme_test_properties(${name} COST ${ARG_COST} TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77
                         ENVIRONMENT PYTHONPATH=${PROJECT_SOURCE_DIR}/tests/support)
endfunction()

# gpunvme_fuzzer(NAME SOURCES ... LINKS ... [CORPUS DIR] [TESTED]) defines a
# libFuzzer program if GPUNVME_FUZZ is ON. As a test of ctest it runs for
# GPUNVME_FUZZ_SECONDS from the seeds in CORPUS. In other builds NAME_test runs
# random inputs for two seconds, unless TESTED says that a test of its own does.
function(gpunvme_fuzzer name)
    cmake_parse_arguments(ARG "TESTED" "CORPUS" "SOURCES;LINKS" ${ARGN})
    if(NOT GPUNVME_FUZZ)
        if(NOT ARG_TESTED)
            gpunvme_test(${name}_test
                SOURCES ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz_inputs.cc
                LINKS ${ARG_LINKS} LABELS fuzz)
        endif()
        return()
    endif()
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE ${ARG_LINKS})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}-corpus)
    file(MAKE_DIRECTORY ${found})
    add_test(NAME ${name} COMMAND ${name} -max_total_time=${GPUNVME_FUZZ_SECONDS} -timeout=10
                                  -verbosity=0 -print_final_stats=1 ${found} ${ARG_CORPUS})
    math(EXPR limit "${GPUNVME_FUZZ_SECONDS} + 120")
    gpunvme_test_properties(${name} TIMEOUT ${limit} LABELS fuzz)
endfunction()
