// A library to be opened and closed.
int plugged(void);
__asm__(".text\n.globl plugged\n.type plugged,@function\nplugged:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size plugged, .-plugged\n");
