// The C++ program under test: threads that throw through several frames, call virtual functions and jump through tables, and
// check every result. Prints how many rounds it has done for each line on standard input; "q" ends it with 0. With an argument its
// threads have a GS base.
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::atomic<long> rounds, caught;

struct Shape {
    virtual ~Shape() = default;
    virtual long area(long n) const = 0;
};
struct Square : Shape {
    long area(long n) const override { return n * n; }
};
struct Line : Shape {
    long area(long n) const override {
        if (n % 7 == 3) throw std::runtime_error("no area " + std::to_string(n));
        return 0;
    }
};

__attribute__((noinline)) static long pick(long n) {
    switch (n % 11) {
    case 0: return n + 1;
    case 1: return n * 3;
    case 2: return n ^ 5;
    case 3: return n - 9;
    case 4: return n / 3;
    case 5: return n << 2;
    case 6: return ~n;
    case 7: return n % 13;
    case 8: return n * n;
    case 9: throw n;
    default: return 42;
    }
}

static long expected(long n) {
    static const int kinds[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const int kind = kinds[n % 11];
    if (kind == 0) return n + 1;
    if (kind == 1) return n * 3;
    if (kind == 2) return n ^ 5;
    if (kind == 3) return n - 9;
    if (kind == 4) return n / 3;
    if (kind == 5) return n << 2;
    if (kind == 6) return ~n;
    if (kind == 7) return n % 13;
    if (kind == 8) return n * n;
    return kind == 9 ? n : 42;
}

struct Guard {
    long &depth;
    explicit Guard(long &d) : depth(d) { depth++; }
    ~Guard() { depth--; }
};

__attribute__((noinline)) static long deep(long n, long levels, long &depth) {
    Guard guard(depth);
    std::string text(static_cast<size_t>(n % 40), 'x');
    if (levels == 0) return pick(n) + static_cast<long>(text.size()) - n % 40;
    return deep(n, levels - 1, depth);
}

static void work(unsigned seed) {
    std::vector<std::unique_ptr<Shape>> shapes;
    shapes.emplace_back(new Square);
    shapes.emplace_back(new Line);
    for (long n = seed;; n = n * 1103515245 % 2147483647 + 12345) {
        long depth = 0, result;
        try {
            result = deep(n, n % 5, depth);
        } catch (long thrown) {
            result = thrown;
            caught++;
        }
        if (depth != 0 || result != expected(n)) abort();
        try {
            if (shapes[static_cast<size_t>(n % 2)]->area(n) != (n % 2 ? 0 : n * n)) abort();
        } catch (const std::runtime_error &error) {
            if (error.what() != "no area " + std::to_string(n)) abort();
            caught++;
        }
        rounds++;
    }
}

int main(int count, char **) {
    static long behind_gs[512];
    // New threads inherit it (copy_thread in arch/x86/kernel/process.c).
    if (count > 1) syscall(SYS_arch_prctl, ARCH_SET_GS, behind_gs);
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; seed++) threads.emplace_back(work, seed);
    setvbuf(stdout, nullptr, _IOLBF, 0);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') _Exit(0);
        printf("%ld %ld\n", rounds.load(), caught.load());
    }
    return 3;
}
