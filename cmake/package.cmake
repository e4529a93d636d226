# SPDX-License-Identifier: BSD-2-Clause
# Builds packages for Debian and Ubuntu, one for each component: `cpack -G DEB`
# in a build configured with -DCMAKE_INSTALL_PREFIX=/usr.
# scripts/package-test.sh checks them.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gpunvmefs)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "gpunvmefs maintainers <maintainers@gpunvmefs.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL programs library dev python)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/client)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# gpunvme_package(COMPONENT NAME SECTION DESCRIPTION [DEPENDENCY...]) describes
# the package of a component.
macro(gpunvme_package component name section description)
    string(TOUPPER ${component} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
    set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
    set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}")
    string(REPLACE ";" ", " depends "${ARGN}")
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
    install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name}
            RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()

set(library libgpunvme${PROJECT_VERSION_MAJOR})
gpunvme_package(programs gpunvmefs admin
    "file system whose NVMe commands a GPU issues\nThe FUSE daemon, the tools to make and check file systems, and\nthe command gpunvme."
    fuse3)
gpunvme_package(library ${library} libs
    "files of a gpunvmefs mount into GPU memory\nThe library libgpunvme, and libcufile.so with gpunvme-run for\nprograms of cuFile.")
gpunvme_package(dev libgpunvme-dev libdevel
    "files of a gpunvmefs mount into GPU memory, development\nHeaders for C, C++ and CUDA, manual pages and examples."
    "${library} (= ${PROJECT_VERSION})")
gpunvme_package(python python3-gpunvme python
    "files of a gpunvmefs mount into GPU memory, for Python\nReads and writes into memory of torch, cupy and numpy."
    "python3 (>= 3.10)" "${library} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# A trigger of dpkg makes the loader find the library as soon as it is
# installed.
file(WRITE ${PROJECT_BINARY_DIR}/package/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/package/triggers)
# The script compresses manual pages and adds a changelog to each package.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_files.cmake)
include(CPack)
