/* SPDX-License-Identifier: BSD-2-Clause */
/* Tries the states that crashes and failing devices leave, and judges what a mount shows. */
#ifndef TESTS_MODEL_EXPLORER_H
#define TESTS_MODEL_EXPLORER_H

#include <string>
#include <unordered_set>

#include "tests/model/file_system.h"

namespace model
{

/* Tells what a mount must be able to do with a state. */
struct Demands {
    bool exact = true;     /* it mounts, and nothing is lost */
    bool before = false;   /* so it does when the newest commit is lost: one less */
    bool degraded = false; /* mounting without a member is enough */
    bool data = true;      /* data is as new as the metadata that names it */
    bool few = false;      /* tries a few of the subsets of the volatile writes */
    int recoveries = 1;    /* crashes inside so many recoveries are tried, too */
};

class Explorer
{
  public:
    Explorer(Plant plant, Demands demands) : plant(plant), demands(demands)
    {
    }

    /* Checks every state that a crash at this moment may leave. */
    void crash(const Disks &disks, const Oracle &oracle, int depth = 0);
    /* Checks a state without volatile writes. */
    void check(const Disks &image, const Oracle &oracle, int depth = 0);

    const Plant plant;
    Demands demands;
    /*
     * Called for each state in place of the check, to damage it further; calls
     * check() itself.
     */
    std::function<void(const Disks &, const Oracle &)> damage;
    unsigned long images = 0;
    std::string report; /* the first bad state, or empty */

  private:
    struct Choice {
        std::vector<const Write *> writes; /* of one block, in order */
    };

    void visit(const Disks &disks, const Oracle &oracle, int depth,
               const std::vector<Choice> &choices, const std::vector<unsigned> &taken);
    void visit_few(const Disks &disks, const Oracle &oracle, int depth,
                   const std::vector<Choice> &choices);
    void visit_all(const Disks &disks, const Oracle &oracle, int depth,
                   const std::vector<Choice> &choices);
    bool is_new(const Disks &image, const Oracle &oracle, int depth);
    bool newest_is_lost(const Disks &image, const Oracle &oracle) const;
    void judge(FileSystem &fs, Mount result, const Disks &image, const Oracle &oracle);
    void go_on(FileSystem &fs, Disks &disks, Oracle *oracle);
    void bad(const std::string &what, const Oracle &oracle);

    std::unordered_set<uint64_t> known;
};

} // namespace model

#endif
