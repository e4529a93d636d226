/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_BLOCKDEV_LOAD_H
#define TESTS_BLOCKDEV_LOAD_H

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "blockdev/bdev.h"

/* Runs threads that write, read back and compare a MiB each, until stop() or an error. */
class Load
{
  public:
    Load(bd_dev *of, unsigned n) : dev(of)
    {
        EXPECT_LE(n, MOST);
        for (unsigned i = 0; i < n; i++)
            threads.emplace_back([this, i] { work(i); });
    }
    ~Load() { stop(); }
    Load(const Load &) = delete;
    Load &operator=(const Load &) = delete;

    /* Returns true if no thread has met an error or other bytes. */
    bool stop()
    {
        stopping = true;
        seconds_until_errors();
        return errors == 0 && wrong == 0;
    }
    std::string text() const
    {
        return std::to_string(errors) + " errors, the last: " + std::to_string(error) + ", " +
               std::to_string(wrong) + " times other bytes";
    }
    /* Waits until all threads have ended. Returns how long that took. */
    double seconds_until_errors()
    {
        auto from = std::chrono::steady_clock::now();
        for (auto &t : threads)
            t.join();
        threads.clear();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
    }
    /* Waits until the threads have made n more rounds, or rounds fail. */
    void wait_rounds(unsigned n) { wait_for(rounds, n); }
    /* Waits until each thread has made another round, or rounds fail. */
    void wait_for_each()
    {
        for (size_t i = 0; i < threads.size(); i++)
            wait_for(rounds_of[i], 1);
    }

    std::atomic<unsigned> errors{0}, wrong{0};
    std::atomic<int> error{0};

  private:
    void wait_for(const std::atomic<unsigned> &count, unsigned n) const
    {
        for (unsigned until = count + n; count < until && !errors;)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    void work(unsigned index)
    {
        std::vector<uint8_t> data(512 << 10), back(data.size());
        for (unsigned round = 0; !stopping; round++, rounds_of[index]++, rounds++) {
            for (size_t i = 0; i < data.size(); i++)
                data[i] = static_cast<uint8_t>((i * 2654435761u >> 11) + index + MOST * round);
            int rc = bd_write(dev, index << 20, data.data(), data.size(), 0);
            if (!rc)
                rc = bd_read(dev, index << 20, back.data(), back.size());
            if (rc) {
                error = rc;
                errors++;
                return;
            }
            wrong += back != data;
        }
    }

    static constexpr unsigned MOST = 16;
    bd_dev *dev;
    std::atomic<bool> stopping{false};
    std::atomic<unsigned> rounds{0}, rounds_of[MOST] = {};
    std::vector<std::thread> threads;
};

#endif
