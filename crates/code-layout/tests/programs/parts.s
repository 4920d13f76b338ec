# A switch whose table leads straight into the function's cold part, which is a function of its own:
# into its middle, and into the bytes that a patched entry would overwrite.
	.text
	.globl parted
	.type parted, @function
	.p2align 4
# parted(rdi = seed): 60 rounds of a switch on 5 cases
parted:
	.cfi_startproc
	mov %rdi, %rax
	mov $60, %ecx
round:
	mov %rax, %rsi
	xor %rcx, %rsi
	and $7, %esi
	cmp $5, %esi
	ja other
	lea table(%rip), %r8
	movslq (%r8,%rsi,4), %rdx
	add %r8, %rdx
	jmp *%rdx
case_0:
	add $3, %rax
	jmp next
case_1:
	rol $5, %rax
	jmp next
case_2:
	imul $7, %rax, %rax
	jmp next
other:
	add %rcx, %rax
next:
	dec %ecx
	jnz round
	ret
	.cfi_endproc
	.size parted, .-parted

	.globl run
	.type run, @function
	.p2align 4
run:
	.cfi_startproc
	call parted
	mov %rax, %rdi
	call parted
	ret
	.cfi_endproc
	.size run, .-run

	.section .text.unlikely,"ax",@progbits
	.type parted.cold, @function
parted.cold:
	.cfi_startproc
	inc %rax
case_3:
	xor $0x55, %rax
	jmp next
case_4:
	not %rax
case_5:
	sub %rcx, %rax
	jmp next
	.cfi_endproc
	.size parted.cold, .-parted.cold

	.section .rodata
	.p2align 2
table:
	.long case_0-table
	.long case_1-table
	.long case_2-table
	.long case_3-table
	.long case_4-table
	.long case_5-table

	.section .note.GNU-stack,"",@progbits
