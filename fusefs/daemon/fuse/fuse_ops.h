/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the FUSE operations. Each decodes its arguments, calls the file
 * system and replies exactly once.
 */
#ifndef FUSEFS_DAEMON_FUSE_FUSE_OPS_H
#define FUSEFS_DAEMON_FUSE_FUSE_OPS_H

#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/state/daemon.h"

/* fuse_inode.c */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set,
                struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_statfs(fuse_req_t req, fuse_ino_t ino);

/* fuse_name.c */
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags);

/* fuse_dir.c */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t after,
                struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t after,
                    struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* fuse_file.c */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
/* An empty name creates an unnamed file (O_TMPFILE, see raw_request()). */
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
              struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t len,
                  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
                        struct fuse_file_info *fi_out, size_t len, int flags);

/* fuse_xattr.c */
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* session_init.c */
void op_init(void *userdata, struct fuse_conn_info *conn);

/* Ends open file descriptions and open directories. */

/*
 * RELEASE: removes the buffers registered through the file and drops the inode.
 * A file with leases is passed to the leases' thread, since ending a lease may
 * take admin commands.
 */
void file_free(struct daemon *d, struct open_file *file);
/*
 * Frees the files whose RELEASE never arrived because the connection was
 * aborted.
 */
void files_free_all(struct daemon *d);

#endif
