# SPDX-License-Identifier: BSD-2-Clause
include(GNUInstallDirs)

option(GPUNVME_TESTS "Build the GoogleTest suites" ON)
option(GPUNVME_TESTS_IN_ALL "The default target builds the test suites too" ON)
option(GPUNVME_EXAMPLES "The default target builds the examples too" ON)
option(GPUNVME_BENCH "Build the benchmarks" ON)
option(GPUNVME_WERROR "Treat warnings as errors" OFF)
option(GPUNVME_ASSERTS "Keep assertions in optimised builds too" ON)
option(GPUNVME_SIM "Build the simulated drive, and its copies to GPU memory" ON)
option(GPUNVME_CUDA "Build the CUDA executor when nvcc is found" ON)
option(GPUNVME_FUZZ "Build the fuzzers (clang; the whole tree is instrumented)" OFF)
set(GPUNVME_FUZZ_SECONDS 10 CACHE STRING "How long ctest runs each fuzzer")
set(GPUNVME_NIXL_SOURCE "" CACHE PATH "NIXL's sources, for their headers: builds its plug-in GPUNVME")
set(GPUNVME_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
set(GPUNVME_CUDA_ARCHITECTURES "80;90" CACHE STRING "CUDA architectures to compile for")

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_SKIP_BUILD_RPATH OFF)

# Programs find libgpunvme relative to themselves, wherever `cmake --install
# --prefix` installs both.
file(RELATIVE_PATH gpunvme_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN/${gpunvme_bin_to_lib}")

# A failed assertion shows a bug of this project, and a file system must stop
# before it writes the consequence to the drive. Device code keeps NDEBUG, since
# an assertion there costs registers.
if(GPUNVME_ASSERTS)
    foreach(type RELEASE RELWITHDEBINFO MINSIZEREL)
        string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_${type} "${CMAKE_C_FLAGS_${type}}")
        string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_${type} "${CMAKE_CXX_FLAGS_${type}}")
    endforeach()
endif()

add_compile_definitions(_GNU_SOURCE _FILE_OFFSET_BITS=64)
if(GPUNVME_SIM)
    add_compile_definitions(GPUNVME_HAVE_SIM)
endif()
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:C>:-Wshadow> $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
                    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
if(GPUNVME_WERROR)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
                        $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

# Installed programs and libraries, which are in C, are hardened. Sanitizers
# replace these checks. _FORTIFY_SOURCE needs optimisation, and some
# distributions define it already.
if(NOT GPUNVME_SANITIZE AND NOT GPUNVME_FUZZ)
    include(CheckCCompilerFlag)
    check_c_compiler_flag(-fcf-protection GPUNVME_HAVE_CF_PROTECTION)
    add_compile_options($<$<COMPILE_LANGUAGE:C>:-fstack-protector-strong>)
    if(GPUNVME_HAVE_CF_PROTECTION)
        add_compile_options($<$<COMPILE_LANGUAGE:C>:-fcf-protection>)
    endif()
    if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        add_compile_options($<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE>
                            $<$<COMPILE_LANGUAGE:C>:-D_FORTIFY_SOURCE=2>)
    endif()
    add_link_options($<HOST_LINK:LINKER:-z,relro,-z,now>)
endif()

if(GPUNVME_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "GPUNVME_FUZZ: libFuzzer comes with clang; configure with "
                            "CC=clang CXX=clang++")
    endif()
    if(NOT GPUNVME_SANITIZE)
        set(GPUNVME_SANITIZE "address,undefined")
    endif()
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>)
endif()
if(GPUNVME_SANITIZE)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${GPUNVME_SANITIZE}>
                        $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>
                        $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>)
    # A comma would end the generator expression's argument.
    string(REPLACE "," "$<COMMA>" sanitizers "${GPUNVME_SANITIZE}")
    add_link_options($<HOST_LINK:-fsanitize=${sanitizers}>)
    # gold takes half of the usual linker's time for each of the test programs.
    find_program(GPUNVME_GOLD ld.gold)
    if(GPUNVME_GOLD AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        add_link_options($<HOST_LINK:-fuse-ld=gold>)
    endif()
    # Tests run thousands of programs. libubsan.so has 6 MB of variables, which LeakSanitizer reads
    # when a program ends; the static library has only those that the program uses. UBSan's data
    # contain addresses for each check, which the dynamic linker relocates in a PIE.
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND GPUNVME_SANITIZE MATCHES "undefined")
        set(program "$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>")
        add_link_options("$<HOST_LINK:$<${program}:-static-libubsan>>"
                         "$<HOST_LINK:$<${program}:-no-pie>>")
    endif()
endif()

set(GPUNVME_HAVE_CUDA OFF)
if(GPUNVME_CUDA)
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
        set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${GPUNVME_CUDA_ARCHITECTURES})
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        find_package(CUDAToolkit REQUIRED)
        set(GPUNVME_HAVE_CUDA ON)
        set(CMAKE_CUDA_STANDARD 17)
        set(CMAKE_CUDA_STANDARD_REQUIRED ON)
        set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    endif()
endif()
message(STATUS "CUDA executor: ${GPUNVME_HAVE_CUDA}")
