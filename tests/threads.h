/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_THREADS_H
#define TESTS_THREADS_H

#include <thread>
#include <vector>

/* Calls run(0) to run(n - 1), each in a thread of its own, and waits until all have returned. */
template <typename N, typename Run> void in_threads(N n, const Run &run)
{
    std::vector<std::thread> threads;

    for (N i = 0; i < n; i++)
        threads.emplace_back([&run, i] { run(i); });
    for (std::thread &t : threads)
        t.join();
}

#endif
