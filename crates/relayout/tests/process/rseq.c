// Runs restartable sequences for ever, which rely on not being interrupted: a kernel that finds the thread outside of one clears
// rseq_cs, and whoever reaches the commit nevertheless was taken out of it and put back. "c" is answered by how many did, and
// by how many were aborted.
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/rseq.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

__attribute__((noinline)) static int commits(struct rseq *area) {
    long done = 0, left = 2000000;
    __asm__ volatile(".pushsection __rseq_cs,\"aw\"\n.balign 32\n3: .long 0,0\n.quad 1f,(2f-1f),4f\n.popsection\n"
                     "lea 3b(%%rip),%%rax\nmov %%rax,8(%[area])\n"
                     "1: dec %[left]\njnz 1b\nmov $1,%[done]\n"
                     "2: jmp 6f\n"
                     ".byte 0x0f,0xb9,0x3d\n.long 0x53053053\n"
                     "4: mov $0,%[done]\n"
                     "6:\n"
                     : [done] "+r"(done), [left] "+r"(left)
                     : [area] "r"(area)
                     : "rax", "memory", "cc");
    return done;
}

int main(void) {
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    int broken = 0, aborts = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n", (void *)answer);
    char line[64];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (;;) {
        if (!commits(area)) aborts++;
        else if (!area->rseq_cs) broken++;
        area->rseq_cs = 0;
        if (poll(&input, 1, 0) != 1) continue;
        if (!fgets(line, sizeof line, stdin)) return 0;
        printf("%d %d\n", broken, aborts);
    }
}
