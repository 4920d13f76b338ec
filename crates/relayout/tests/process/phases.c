// Two workloads in turns, of functions of their own: a line "a" or "b" on standard input chooses; each line is answered with
// how many rounds are done. Ends where a result is wrong.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static _Atomic int is_b;
static _Atomic long rounds;
static volatile unsigned start = 12345;

#define WORKLOAD(name, odd)                                                                                            \
    static __attribute__((noinline)) unsigned name##_step(unsigned x) {                                                \
        if (x % 3 == 0) return x / 3;                                                                                  \
        if (x % 7 == 0) return x ^ 0x55;                                                                               \
        return odd * x + 1;                                                                                            \
    }                                                                                                                  \
    static __attribute__((noinline)) unsigned name(unsigned x) {                                                       \
        for (int i = 0; i < 200; i++) x = name##_step(x) % 1000003;                                                    \
        return x;                                                                                                      \
    }
WORKLOAD(in_a, 3)
WORKLOAD(in_b, 5)

static void *work(void *unused) {
    (void)unused;
    unsigned const a = in_a(start), b = in_b(start);
    for (;;) {
        if (is_b ? in_b(start) != b : in_a(start) != a) abort();
        rounds++;
    }
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, 0) != 0) return 1;
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        is_b = line[0] == 'b';
        printf("%ld\n", rounds);
        fflush(stdout);
    }
    return 0;
}
