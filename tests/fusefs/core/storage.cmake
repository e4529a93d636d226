# SPDX-License-Identifier: BSD-2-Clause
# The storage half: storage_*_test.cc, on a device in memory that can be cut off from power.
add_library(storage_fixture STATIC crash_device.cc image_check.c image_repair.c space_probe.c
            storage_fixture.cc)
target_link_libraries(storage_fixture PUBLIC ffs mkfs_core fsck_core PkgConfig::xxhash GTest::gtest)

foreach(name alloc inode tx)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture)
endforeach()
gpunvme_test(storage_table_test SOURCES storage_table_test.cc LINKS storage_fixture
             LABELS plain)
gpunvme_test(storage_space_test SOURCES storage_space_test.cc LINKS storage_fixture)
gpunvme_test(storage_resize_test SOURCES storage_resize_test.cc LINKS storage_fixture COST 30)
# As many rounds as the environment asks for (tests/rounds.h).
set(labels_chunk_crash plain)
foreach(name chunks chunk_crash crash crash_files)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture
                 LABELS ${labels_${name}} TIMEOUT 900)
endforeach()
gpunvme_test(storage_campaign_test SOURCES storage_campaign_test.cc LINKS storage_fixture COST 60
             TIMEOUT 7200)
foreach(name cache thread)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture
                 LABELS threads)
endforeach()

# Mutated images with right checksums: as a test, for a minute or an hour, and with libFuzzer.
gpunvme_test(fs_fuzz_test SOURCES fs_fuzz_test.cc fuzz_image.cc LINKS storage_fixture
             COST 80 TIMEOUT 7200)
gpunvme_fuzzer(fuzz_image SOURCES fuzz_image.cc LINKS storage_fixture TESTED)
