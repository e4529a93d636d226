# The storage half: storage_*_test.cc, on a device in memory that can be cut off from power.
set(fsck_passes blocks dirs inodes links map report super)
list(TRANSFORM fsck_passes PREPEND ${PROJECT_SOURCE_DIR}/mkfs/fsck_)
list(TRANSFORM fsck_passes APPEND .c)
add_library(storage_fixture STATIC
    crash_dev.c image_check.c storage_fixture.cc ${fsck_passes})
target_include_directories(storage_fixture PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(storage_fixture PUBLIC ffs mkfs_core mkfs_image GTest::gtest)

foreach(name alloc cache crash crash_files inode thread tx)
    gpunvme_test(storage_${name}_test SOURCES storage_${name}_test.cc LINKS storage_fixture)
endforeach()
