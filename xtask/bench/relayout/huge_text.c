/* Puts a program's code on huge pages as it starts, its layout as it was: LD_PRELOAD=huge_text.so PROGRAM.
 *
 * What lies in whole pages of 2 MiB of the executable's code is copied into anonymous memory, which transparent huge pages back,
 * and moved over the original. A program's wish for no huge pages (PR_SET_THP_DISABLE, as MariaDB's) is not passed on. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE ((uintptr_t)2 << 20)

int prctl(int option, ...) {
    va_list list;
    va_start(list, option);
    unsigned long given[4];
    for (int i = 0; i < 4; i++) given[i] = va_arg(list, unsigned long);
    va_end(list);
    if (option == PR_SET_THP_DISABLE) return 0;
    return (int)syscall(SYS_prctl, option, given[0], given[1], given[2], given[3]);
}

static void fail(const char *what) {
    perror(what);
    _exit(70);
}

__attribute__((constructor)) static void to_huge_pages(void) {
    char exe[PATH_MAX], line[PATH_MAX + 200];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    FILE *maps = fopen("/proc/self/maps", "r");
    if (length < 0 || !maps) fail("huge_text: /proc");
    exe[length] = 0;
    uintptr_t start = 0, end = 0;
    while (fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && !strcmp(rights, "r-xp") && strstr(line, exe)) start = from, end = to;
    }
    fclose(maps);
    start = (start + HUGE - 1) & ~(HUGE - 1);
    end &= ~(HUGE - 1);
    if (!start || start >= end) return;
    size_t bytes = end - start;
    uint8_t *memory = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("huge_text: mmap");
    uint8_t *copy = (uint8_t *)(((uintptr_t)memory + HUGE - 1) & ~(HUGE - 1));
    if (madvise(copy, bytes, MADV_HUGEPAGE)) fail("huge_text: madvise");
    memcpy(copy, (void *)start, bytes);
    if (mprotect(copy, bytes, PROT_READ | PROT_EXEC)) fail("huge_text: mprotect");
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED) fail("huge_text: mremap");
}
