// A family: a parent that forks a child for each "f", and children that call `answer` for ever and write what they got
// where their parent sees it. Commands on standard input: "f" forks and prints the child's pid, "c" prints what each
// process got last (the parent's first), "l PATH" opens a library and prints the address of its `plugged`, "u" closes it,
// "x" executes this program again, "q" ends with 0.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

static volatile int *got;

int main(int argc, char **argv) {
    (void)argc;
    signal(SIGCHLD, SIG_IGN);
    setvbuf(stdout, 0, _IOLBF, 0);
    got = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int children = 0;
    void *library = 0;
    printf("%p\n", (void *)answer);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        switch (line[0]) {
        case 'f': {
            int index = ++children;
            pid_t pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) {
                    got[index] = answer();
                    usleep(1000);
                }
            }
            printf("%d\n", pid);
            break;
        }
        case 'c':
            printf("%d", answer());
            for (int i = 1; i <= children; i++) got[i] = 0;
            usleep(30000);
            for (int i = 1; i <= children; i++) printf(" %d", got[i]);
            printf("\n");
            break;
        case 'l':
            library = dlopen(line + 2, RTLD_NOW);
            printf("%p\n", library ? dlsym(library, "plugged") : 0);
            break;
        case 'u':
            printf("%d\n", dlclose(library));
            break;
        case 'x':
            execv("/proc/self/exe", argv);
            return 4;
        default:
            return 0;
        }
    }
    return 3;
}
