/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures KvikIO's futures of 4 KiB at random places of a file, from C++. The
 * file has its own offsets as 64-bit words, and every read is compared with them.
 * It is made if it is missing. $KVIKIO is the folder libkvikio of the wheel
 * libkvikio-cu13 26.10, and $CUDA one of CUDA 13 with cufile.h. Memory is that of
 * the host without -DWITH_CUDA.
 *
 *     g++ -std=c++20 -O2 -DKVIKIO_CUFILE_FOUND -DKVIKIO_CUFILE_VERSION_API_FOUND \
 *         -DWITH_CUDA -I$KVIKIO/include -I$CUDA/include bench/kvikio_random.cc \
 *         -L$KVIKIO/lib64 -L$CUDA/lib64 -lkvikio -lrapids_logger -lcudart
 *     KVIKIO_COMPAT_MODE=OFF gpunvme-run ./a.out FILE [READS [THREADS]]
 *     KVIKIO_COMPAT_MODE=ON ./a.out FILE       # by POSIX
 */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <future>
#include <kvikio/defaults.hpp>
#include <kvikio/file_handle.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>
#ifdef WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace
{

constexpr size_t PIECE = 4096;
constexpr size_t FILE_BYTES = size_t(1) << 30;
constexpr size_t AT_A_TIME = 4096; /* futures in flight */

void make_file(const char *name)
{
    std::vector<uint64_t> words((8 << 20) / 8);
    struct stat st;
    FILE *file;

    if (stat(name, &st) == 0 && size_t(st.st_size) == FILE_BYTES)
        return;
    file = fopen(name, "wb");
    if (!file)
        throw std::runtime_error(std::string(name) + ": cannot be written");
    for (uint64_t at = 0; at < FILE_BYTES; at += words.size() * 8) {
        for (size_t i = 0; i < words.size(); i++)
            words[i] = at + i * 8;
        if (fwrite(words.data(), 8, words.size(), file) != words.size())
            throw std::runtime_error(std::string(name) + ": cannot be written");
    }
    if (fclose(file))
        throw std::runtime_error(std::string(name) + ": cannot be written");
}

/* Allocates memory of the GPU, or of the host in a build without CUDA. */
char *allocate(size_t bytes)
{
    void *memory = nullptr;

#ifdef WITH_CUDA
    if (cudaMalloc(&memory, bytes) != cudaSuccess)
        throw std::runtime_error("no memory of a GPU");
#else
    if (posix_memalign(&memory, PIECE, bytes))
        throw std::runtime_error("no memory");
#endif
    return static_cast<char *>(memory);
}

void copy_out(std::vector<char> &to, const char *from)
{
#ifdef WITH_CUDA
    if (cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost) != cudaSuccess)
        throw std::runtime_error("the memory cannot be read");
#else
    memcpy(to.data(), from, to.size());
#endif
}

/*
 * Reads one batch, checks its bytes, and returns the seconds of the reads. No
 * kernel writes to the memory, so KvikIO need not synchronize the default stream,
 * which it would do before each future of cuFile and for none of POSIX.
 */
double read_batch(kvikio::FileHandle &file, char *memory, const std::vector<size_t> &offsets)
{
    std::vector<std::future<size_t>> reads;
    std::vector<char> host(offsets.size() * PIECE);
    auto begun = std::chrono::steady_clock::now();

    for (size_t i = 0; i < offsets.size(); i++)
        reads.push_back(file.pread(memory + i * PIECE, PIECE, offsets[i],
                                   kvikio::defaults::task_size(), kvikio::defaults::gds_threshold(),
                                   false));
    for (auto &read : reads) {
        if (read.get() != PIECE)
            throw std::runtime_error("a short read");
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;

    copy_out(host, memory);
    for (size_t i = 0; i < host.size(); i += 8) {
        uint64_t word;

        memcpy(&word, &host[i], 8);
        if (word != offsets[i / PIECE] + i % PIECE)
            throw std::runtime_error("wrong bytes");
    }
    return took.count();
}

void measure(const char *name, size_t n, unsigned threads)
{
    std::mt19937_64 random(1);
    double seconds = 0;
    size_t done = 0;

    make_file(name);
    kvikio::defaults::set_thread_pool_nthreads(threads);
    kvikio::defaults::set_gds_threshold(0); /* by default shorter reads do not use cuFile */
    kvikio::FileHandle file(name, "r");
    char *memory = allocate(AT_A_TIME * PIECE);
    std::vector<size_t> offsets(AT_A_TIME);

    while (done < n) {
        for (size_t &offset : offsets)
            offset = random() % (FILE_BYTES / PIECE) * PIECE;
        seconds += read_batch(file, memory, offsets);
        done += AT_A_TIME;
    }
    printf("%zu reads of %zu bytes by %u threads: %.3f M/s\n", done, PIECE, threads,
           double(done) / seconds / 1e6);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: kvikio_random FILE [READS [THREADS]]\n");
        return 2;
    }
    try {
        measure(argv[1], argc > 2 ? strtoul(argv[2], nullptr, 10) : 262144,
                argc > 3 ? unsigned(strtoul(argv[3], nullptr, 10)) : 16);
    } catch (const std::exception &error) {
        fprintf(stderr, "kvikio_random: %s: %s\n", argv[1], error.what());
        return 1;
    }
    return 0;
}
