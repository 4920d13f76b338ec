// The C++ program under test: threads that throw through several frames, call virtual functions and jump through tables; others
// whose signal handlers throw and walk the stack, that jump out of frames, are cancelled, fork, and run coroutines. All
// check every result. Prints how many rounds it has done for each line on standard input; "q" ends it with 0. With the argument
// "gs" its threads have a GS base, with "late" they start after the first line, with "family" a child does the same.
#include <asm/prctl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::atomic<long> rounds, caught;
// Rounds of each of the others.
static std::atomic<long> handled, walked, jumped, cancelled, forked, resumed;

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

// A handler that throws through the kernel's frame, at an instruction that faults and at a call.
static void on_fault(int signal) {
    sigset_t unblock;
    sigemptyset(&unblock);
    sigaddset(&unblock, signal);
    pthread_sigmask(SIG_UNBLOCK, &unblock, nullptr);
    throw signal;
}

__attribute__((noinline)) static long read_at(const volatile long *place, long n) {
    long depth = 0;
    Guard guard(depth);
    return *place + n % 3;
}

// The C library's is declared not to throw.
static int (*volatile raise_signal)(int) = raise;

static void faults(long n) {
    const long here = 17;
    const volatile long *place = n % 3 == 0 ? nullptr : &here;
    try {
        if (read_at(place, n) != here + n % 3 || !place) abort();
    } catch (int signal) {
        if (signal != SIGSEGV || place) abort();
    }
    try {
        raise_signal(SIGUSR1);
        abort();
    } catch (int signal) {
        if (signal != SIGUSR1) abort();
    }
    handled++;
}

// A handler that walks the stack, to the function that raised the signal and beyond.
static thread_local long frames;
static _Unwind_Reason_Code on_frame(_Unwind_Context *, void *) {
    frames++;
    return _URC_NO_REASON;
}
static void on_walk(int) { _Unwind_Backtrace(on_frame, nullptr); }

__attribute__((noinline)) static long raised(long levels) {
    if (levels == 0) {
        frames = 0;
        raise(SIGUSR2);
        return 0;
    }
    const long below = raised(levels - 1);
    // So that the compiler makes no loop of it.
    __asm__ volatile("" : : "r"(&levels) : "memory");
    return below + 1;
}

static void walks(long n) {
    const long levels = 5 + n % 4;
    if (raised(levels) != levels) abort();
    // Those of the levels, of raise, of the kernel, of the handler, and those outside.
    if (frames < levels + 4) abort();
    walked++;
}

static thread_local jmp_buf home;
__attribute__((noinline)) static long leave(long levels) {
    if (levels == 0) longjmp(home, 7);
    const long below = leave(levels - 1);
    __asm__ volatile("" : : "r"(&levels) : "memory");
    return below + 1;
}

static void jumps(long n) {
    const int code = setjmp(home);
    if (code == 0) leave(n % 9), abort();
    if (code != 7) abort();
    jumped++;
}

static void *waits(void *depth) {
    Guard guard(*static_cast<long *>(depth));
    for (;;) usleep(1000);
}

static void cancels(long n) {
    pthread_t thread;
    long depth = 0;
    void *result = nullptr;
    if (pthread_create(&thread, nullptr, waits, &depth) != 0) abort();
    usleep(static_cast<useconds_t>(n % 5) * 300);
    if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0) abort();
    if (result != PTHREAD_CANCELED || depth != 0) abort();
    cancelled++;
}

static void forks(long n) {
    const pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        // Other threads were throwing when it was forked: what they had locked stays locked.
        long depth = 0, result;
        try {
            result = deep(n, 3, depth);
        } catch (long thrown) {
            result = thrown;
        }
        _exit(depth != 0 ? 2 : result == expected(n) ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) abort();
    forked++;
}

struct Numbers {
    struct promise_type {
        long value = 0;
        Numbers get_return_object() { return Numbers{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(long next) noexcept {
            value = next;
            return {};
        }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    std::coroutine_handle<promise_type> handle;
};

static Numbers numbers(long n, long &depth) {
    Guard guard(depth);
    for (long i = 0; i < 5; i++) co_yield pick(n + i);
}

static void resumes(long n) {
    long depth = 0;
    Numbers made = numbers(n, depth);
    try {
        for (long i = 0; made.handle.resume(), !made.handle.done(); i++)
            if (depth != 1 || made.handle.promise().value != expected(n + i)) abort();
    } catch (long thrown) {
        if (thrown % 11 != 9) abort();
    }
    if (depth != 0) abort();
    made.handle.destroy();
    resumed++;
}

static void others(void (*one)(long)) {
    for (long n = 1;; n++) one(n);
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
}

int main(int count, char **arguments) {
    handle(SIGSEGV, on_fault);
    handle(SIGUSR1, on_fault);
    handle(SIGUSR2, on_walk);
    static long behind_gs[512];
    const std::string how = count > 1 ? arguments[1] : "";
    // New threads inherit it (copy_thread in arch/x86/kernel/process.c).
    if (how == "gs") syscall(SYS_arch_prctl, ARCH_SET_GS, behind_gs);
    char line[64];
    if (how == "late" && !fgets(line, sizeof line, stdin)) return 3;
    // A child that does the same as long as its parent lives.
    const pid_t child = how == "family" ? fork() : -1;
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; seed++) threads.emplace_back(work, seed);
    for (auto one : {faults, walks, jumps, cancels, forks, resumes}) threads.emplace_back(others, one);
    if (child == 0)
        for (;;) pause();
    setvbuf(stdout, nullptr, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') _Exit(0);
        if (child > 0 && waitpid(child, nullptr, WNOHANG) != 0) abort();
        printf("%ld %ld %ld %ld %ld %ld %ld %ld\n", rounds.load(), caught.load(), handled.load(), walked.load(),
               jumped.load(), cancelled.load(), forked.load(), resumed.load());
    }
    return 3;
}
