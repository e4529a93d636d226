# The storage half: storage_*_test.cc, on a device in memory that can be cut off from power.
add_library(storage_fixture STATIC crash_dev.c image_check.c storage_fixture.cc)
target_link_libraries(storage_fixture PUBLIC ffs mkfs_core fsck_core GTest::gtest)

foreach(name alloc crash crash_files inode recover tx)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture)
endforeach()
foreach(name cache thread)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture
                 LABELS threads)
endforeach()
