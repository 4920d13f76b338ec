# One frame with two entries that others may call: the second lies where a jump at the first would be written.
	.text
	.globl twice_and_on
	.type twice_and_on, @function
	.globl on
	.type on, @function
	.globl no_type
	.p2align 4
twice_and_on:
	.cfi_startproc
	add %rdi, %rdi
on:
	lea 3(%rdi), %rax
	ret
	.cfi_endproc
	.size twice_and_on, .-twice_and_on
	.size on, .-on

	.globl thrice
	.type thrice, @function
	.p2align 4
thrice:
	.cfi_startproc
	nop
no_type:
	lea (%rdi,%rdi,2), %rax
	ret
	.cfi_endproc
	.size thrice, .-thrice

	.globl run
	.type run, @function
	.p2align 4
run:
	.cfi_startproc
	call thrice
	mov %rax, %rdi
	call twice_and_on
	ret
	.cfi_endproc
	.size run, .-run
	.section .note.GNU-stack,"",@progbits
