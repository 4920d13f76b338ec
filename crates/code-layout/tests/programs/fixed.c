/* An executable that is loaded where it says. With arguments, it first puts a layout of itself in force:
   fixed CODE PATCHES ADDRESS, the patches as lines of address and new bytes in hexadecimal. */
#define _GNU_SOURCE
#include "mixed.c"
#include <stdio.h>
#include <sys/mman.h>

static void install(const char *code, const char *patches, unsigned long address) {
  FILE *file = fopen(code, "rb");
  char *cache = mmap((void *)address, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (!file || cache != (char *)address) exit(9);
  if (fread(cache, 1, 16 << 20, file) == 0) exit(8);
  mprotect(cache, 16 << 20, PROT_READ | PROT_EXEC);
  fclose(file);
  FILE *list = fopen(patches, "r");
  unsigned long at;
  char bytes[64];
  while (list && fscanf(list, "%lx %63s", &at, bytes) == 2) {
    mprotect((void *)(at & ~4095ul), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int i = 0; bytes[2 * i]; i++) {
      unsigned byte;
      sscanf(bytes + 2 * i, "%2x", &byte);
      ((unsigned char *)at)[i] = byte;
    }
  }
}

int main(int argc, char **argv) {
  if (argc > 3) install(argv[1], argv[2], strtoul(argv[3], 0, 16));
  for (u64 seed = 0; seed < 30; seed++) printf("%lx\n", (unsigned long)run(seed * 7919 + 3));
  return 0;
}
