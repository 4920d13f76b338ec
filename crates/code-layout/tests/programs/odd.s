# What compilers do not write: short branches, a loop into the entry, tiny functions, transactions,
# flags that live across many branches, the red zone.
	.text
	.macro begin name
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	.cfi_startproc
	.endm
	.macro end name
	.cfi_endproc
	.size \name, .-\name
	.endm

# loop: rdi times
	begin short_loop
	mov %rdi, %rcx
	xor %eax, %eax
	jrcxz 2f
1:	add %rcx, %rax
	loop 1b
2:	ret
	end short_loop

# branches back into its own first 5 bytes
	begin into_entry
	nop
	add %rdi, %rsi
	dec %rdi
	jnz into_entry+1
	mov %rsi, %rax
	ret
	end into_entry

	begin four
	mov %edi, %eax
	ret
	end four

# never run: the CPU may not have it
	begin transaction
	test %rdi, %rdi
	jz 2f
	xbegin 1f
	xend
1:	mov $1, %eax
	ret
2:	mov $2, %eax
	ret
	end transaction

# one comparison, read by three branches, with data in the red zone
	begin flags
	mov %rdi, -8(%rsp)
	mov %rsi, -16(%rsp)
	xor %eax, %eax
	cmp %rsi, %rdi
	jb 1f
	lea 1(%rax), %rax
1:	jne 2f
	lea 10(%rax), %rax
2:	jg 3f
	lea 100(%rax), %rax
3:	setc %cl
	movzx %cl, %ecx
	lea (%rax,%rcx,8), %rax
	add -8(%rsp), %rax
	sub -16(%rsp), %rax
	ret
	end flags

# asks for its own address
	begin own_address
	call 1f
1:	pop %rax
	lea 1b(%rip), %rcx
	sub %rcx, %rax
	ret
	end own_address

	begin run
	push %rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbx, 0
	push %r12
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %r12, 0
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	mov %rdi, %rbx
	and $63, %edi
	call short_loop
	mov %rax, %r12
	mov %rbx, %rdi
	and $15, %edi
	inc %edi
	mov %r12, %rsi
	call into_entry
	mov %rax, %r12
	mov %rbx, %rdi
	mov $77, %esi
	call flags
	add %rax, %r12
	mov $77, %edi
	mov %rbx, %rsi
	call flags
	lea (%r12,%rax,4), %r12
	mov $5, %edi
	mov $5, %esi
	call flags
	add %rax, %r12
	mov %rbx, %rdi
	call four
	add %rax, %r12
	xor %edi, %edi
	call transaction
	add %rax, %r12
	call own_address
	lea (%r12,%rax), %rax
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	pop %r12
	.cfi_adjust_cfa_offset -8
	.cfi_restore %r12
	pop %rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore %rbx
	ret
	end run
	.section .note.GNU-stack,"",@progbits
