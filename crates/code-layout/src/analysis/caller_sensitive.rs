//! Functions whose caller's address matters.

use crate::elf::binary::Binary;

/// Functions that remember or judge the address that they return to: it must be the old one, or a
/// later `longjmp` would find unmapped memory, and `dlsym` no object that calls it.
const CALLER_SENSITIVE: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "getcontext",
    "swapcontext",
    "vfork",
    "__vfork",
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlvsym",
    "_mcount",
    "mcount",
    "__fentry__",
    // Goes on one byte behind the address that it returns to (-fsplit-stack).
    "__morestack",
    "__morestack_non_split",
];

pub(crate) fn is_caller_sensitive_slot(binary: &Binary, slot: u64) -> bool {
    binary
        .got_symbol(slot)
        .is_some_and(|name| CALLER_SENSITIVE.contains(&name))
}

/// Whether a direct call's target is such a function.
pub(crate) fn is_caller_sensitive(binary: &Binary, target: u64) -> bool {
    binary
        .elf
        .names(target)
        .any(|name| CALLER_SENSITIVE.contains(&name))
        || binary
            .plt_slot(target)
            .is_some_and(|slot| is_caller_sensitive_slot(binary, slot))
}
