# SPDX-License-Identifier: BSD-2-Clause
# External libraries, each as an imported target PkgConfig::NAME.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(fuse3 REQUIRED IMPORTED_TARGET fuse3>=3.13)
pkg_check_modules(libnvme REQUIRED IMPORTED_TARGET libnvme)
pkg_check_modules(libisal REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(uuid REQUIRED IMPORTED_TARGET uuid)
pkg_check_modules(blkid REQUIRED IMPORTED_TARGET blkid)
pkg_check_modules(jsonc REQUIRED IMPORTED_TARGET json-c)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# This library is optional: without it programs do not filter their system calls.
pkg_check_modules(libseccomp IMPORTED_TARGET libseccomp)
