/* SPDX-License-Identifier: BSD-2-Clause */
// What a file system should look like: the same operations on maps and strings.
#ifndef TESTS_FUSEFS_FS_MODEL_H
#define TESTS_FUSEFS_FS_MODEL_H

#include <stdint.h>

#include <map>
#include <memory>
#include <string>

struct ModelNode {
    uint32_t mode = 0;
    unsigned nlink = 0;
    std::string data; // or the target of a symbolic link
    std::map<std::string, std::string> xattrs;
    std::map<std::string, std::shared_ptr<ModelNode>> names;
    ModelNode *parent = nullptr; // directories

    bool is_dir() const;
};
using ModelRef = std::shared_ptr<ModelNode>;

// Each returns 0 or -errno, as the function of the file system does.
class Model
{
  public:
    Model();
    ModelRef root;

    int create(const ModelRef &dir, const std::string &name, uint32_t mode,
               const std::string &data = "");
    int link(const ModelRef &node, const ModelRef &dir, const std::string &name);
    int unlink(const ModelRef &dir, const std::string &name);
    int rmdir(const ModelRef &dir, const std::string &name);
    int rename(const ModelRef &dir, const std::string &name, const ModelRef &to,
               const std::string &new_name, unsigned flags);

  private:
    static void drop(const ModelRef &dir, const std::string &name);
    int move(const ModelRef &dir, const std::string &name, const ModelRef &to,
             const std::string &new_name);
    void exchange(const ModelRef &dir, const std::string &name, const ModelRef &to,
                  const std::string &new_name);
};

#endif
