//! Compiles a program into a shared object, loads it into this process, and installs layouts of it
//! here.
#![allow(
    unsafe_code,
    reason = "running moved code means writing and calling memory; the crate itself does neither"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use code_layout::{
    CounterArea, Emitted, Function, FunctionId, Image, LayoutPlan, Patch, PatchSelection,
    Placement, check, emit,
};

const PAGE_BYTES: u64 = 4096;

unsafe extern "C" {
    fn __register_frame(begin: *const c_void);
    fn __deregister_frame(begin: *const c_void);
    fn _Unwind_Find_FDE(pc: *const c_void, bases: *mut Bases) -> *const c_void;
}

/// `struct dwarf_eh_bases` of libgcc/unwind-dw2-fde.h: text base, data base, function.
type Bases = [usize; 3];
type Find = unsafe extern "C" fn(*const c_void, *mut Bases) -> *const c_void;

/// A shared object in this process.
pub(crate) struct Program {
    pub(crate) image: Image,
    pub(crate) bias: u64,
    handle: *mut c_void,
}

/// A layout that is in force until it is dropped.
pub(crate) struct Installed<'a> {
    program: &'a Program,
    pub(crate) emitted: Emitted,
    room: u64,
}

/// Compiles with gcc or g++, by the source's name.
pub(crate) fn compile(directory: &Path, source: &Path, flags: &[&str]) -> PathBuf {
    let output = directory.join("program.so");
    let compiler = if source.extension().is_some_and(|end| end == "cc") {
        "g++"
    } else {
        "gcc"
    };
    let result = Command::new(compiler)
        .args(["-shared", "-fPIC", "-g0", "-Wno-deprecated", "-o"])
        .arg(&output)
        .args(flags)
        .arg(source)
        .output()
        .expect("gcc runs");
    assert!(
        result.status.success(),
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    output
}

impl Program {
    /// From a file in `tests/programs`.
    pub(crate) fn new(source: &str, flags: &[&str]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(source);
        Self::from_path(&path, flags)
    }

    pub(crate) fn from_path(source: &Path, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = compile(directory.path(), source, flags);
        Self::load(&path, c"run")
    }

    /// A shared object as it is, and one of its functions.
    pub(crate) fn load(path: &Path, function: &CStr) -> Self {
        let image = Image::parse(std::fs::read(path).expect("the object")).expect("an image");
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: dlopen takes a NUL-terminated path; the object's constructors are the compiler's
        // own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let mut program = Self {
            image,
            bias: 0,
            handle,
        };
        let run = program.symbol(function);
        // SAFETY: Dl_info is plain data, for which all zeros is a value.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked for; `found` outlives the call.
        let known = unsafe { libc::dladdr(run as *const c_void, &raw mut found) };
        assert_ne!(known, 0);
        program.bias = found.dli_fbase as u64;
        program
    }

    /// A symbol's runtime address.
    pub(crate) fn symbol(&self, name: &CStr) -> u64 {
        // SAFETY: the handle is open as long as `self`; the name ends with NUL.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address as u64
    }

    pub(crate) fn call(&self, name: &CStr, argument: u64) -> u64 {
        let address = self.symbol(name);
        // SAFETY: the programs' functions called by name take one 64-bit argument and return one.
        let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(address) };
        function(argument)
    }

    /// `run` for some seeds.
    pub(crate) fn results(&self, seeds: u64) -> Vec<u64> {
        (0..seeds)
            .map(|seed| self.call(c"run", seed * 7919 + 3))
            .collect()
    }

    pub(crate) fn function(&self, name: &CStr) -> Function {
        let vaddr = self.symbol(name) - self.bias;
        let id = self.image.function_from(vaddr).expect("a function");
        self.image.analyse(id).expect("movable")
    }

    /// All movable functions.
    pub(crate) fn functions(&self) -> Vec<Function> {
        (0..self.image.functions().len())
            .filter_map(|index| {
                self.image
                    .analyse(FunctionId(u32::try_from(index).expect("few")))
                    .ok()
            })
            .collect()
    }

    /// What the slots hold now.
    pub(crate) fn got(&self) -> BTreeMap<u64, u64> {
        self.image
            .got_slots()
            .iter()
            .map(|slot| {
                let address = (self.bias + slot.vaddr) as *const u64;
                // SAFETY: the slot lies in the loaded object's relocated data, aligned by the
                // linker.
                (slot.vaddr, unsafe { address.read() })
            })
            .collect()
    }

    /// Emits, checks, writes, patches.
    pub(crate) fn install(
        &self,
        plan: &LayoutPlan,
        patches: PatchSelection,
        counters: Option<CounterArea>,
    ) -> Installed<'_> {
        self.place(plan, patches, counters).activate()
    }

    /// Emits, checks and writes, without patches.
    pub(crate) fn place(
        &self,
        plan: &LayoutPlan,
        patches: PatchSelection,
        counters: Option<CounterArea>,
    ) -> Installed<'_> {
        let room = 16 << 20;
        let address = map_near(self.bias, room);
        let placement = Placement {
            load_bias: self.bias,
            cache_address: address,
            cache_bytes: room,
            got: self.got(),
            counters,
            patches,
        };
        let emitted = emit(&self.image, plan, &placement).expect("emitted");
        check(&self.image, plan, &placement, &emitted).expect("right");
        let libgcc: Find = _Unwind_Find_FDE;
        // SAFETY: the mapping at `address` is ours, writable, and larger than what was emitted; the
        // pointer in it is aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(
                emitted.bytes.as_ptr(),
                address as *mut u8,
                emitted.bytes.len(),
            );
            *(emitted.lookup.next as *mut usize) = libgcc as usize;
            assert_eq!(
                libc::mprotect(
                    address as *mut c_void,
                    16 << 20,
                    libc::PROT_READ | libc::PROT_EXEC
                ),
                0
            );
            // The section ends with a terminator and stays as long as it is registered.
            __register_frame((address + emitted.eh_frame.start as u64) as *const c_void);
        }
        Installed {
            program: self,
            emitted,
            room,
        }
    }

    /// Writes one side of a patch over the other.
    fn write(&self, patch: &Patch, from: &[u8], to: &[u8]) {
        let address = self.bias + patch.vaddr;
        let start = address & !(PAGE_BYTES - 1);
        let len =
            usize::try_from((address + 8).next_multiple_of(PAGE_BYTES) - start).expect("small");
        let code = !matches!(patch.kind, code_layout::PatchKind::VtableSlot);
        let protection =
            libc::PROT_READ | libc::PROT_WRITE | if code { libc::PROT_EXEC } else { 0 };
        // SAFETY: the pages are the loaded object's own; nobody runs in the patched bytes
        // meanwhile, as this is the only thread in them, and it is here.
        unsafe {
            assert_eq!(libc::mprotect(start as *mut c_void, len, protection), 0);
            let now = std::slice::from_raw_parts(address as *const u8, from.len());
            assert_eq!(now, from, "{patch:x?}");
            std::ptr::copy_nonoverlapping(to.as_ptr(), address as *mut u8, to.len());
        }
    }
}

impl Installed<'_> {
    /// The frame of an address, as the emitted function and libgcc's find it.
    pub(crate) fn frames_of(&self, pc: u64) -> [(usize, Bases); 2] {
        let entry = self.emitted.lookup.entry;
        // SAFETY: emitted with this signature, and executable until `self` is dropped.
        let own: Find = unsafe { std::mem::transmute(entry) };
        let libgcc: Find = _Unwind_Find_FDE;
        [own, libgcc].map(|find| {
            let mut bases = [1; 3];
            // SAFETY: takes any address, and `bases` outlives the call.
            let frame = unsafe { find(pc as *const c_void, &raw mut bases) };
            (frame as usize, bases)
        })
    }

    pub(crate) fn activate(self) -> Self {
        for patch in &self.emitted.patches {
            self.program.write(patch, &patch.old, &patch.new);
        }
        self
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        for patch in &self.emitted.patches {
            self.program.write(patch, &patch.new, &patch.old);
        }
        let address = self.emitted.address;
        // SAFETY: the frames were registered at this address, and no thread runs in the region any
        // more.
        unsafe {
            __deregister_frame((address + self.emitted.eh_frame.start as u64) as *const c_void);
            libc::munmap(
                address as *mut c_void,
                usize::try_from(self.room).expect("fits"),
            );
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: no code of the object runs any more.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// Maps writable memory within 1 GiB of an address.
fn map_near(address: u64, bytes: u64) -> u64 {
    for step in 1..60 {
        let wanted = (address & !0xff_ffff) - step * (16 << 20);
        // SAFETY: NOREPLACE never overwrites a mapping.
        let got = unsafe {
            libc::mmap(
                wanted as *mut c_void,
                usize::try_from(bytes).expect("fits"),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if got as u64 == wanted {
            return wanted;
        }
    }
    panic!("no room near {address:#x}");
}

/// Counters within reach of the code.
pub(crate) struct Counters {
    address: u64,
    count: usize,
}

impl Counters {
    pub(crate) fn near(address: u64, count: usize) -> Self {
        Self {
            address: map_near(address, (count as u64 * 8).max(8)),
            count,
        }
    }

    pub(crate) fn area(&self) -> CounterArea {
        CounterArea {
            address: self.address,
        }
    }

    pub(crate) fn read(&self) -> Vec<u64> {
        // SAFETY: the mapping holds `count` counters and is never unmapped.
        unsafe { std::slice::from_raw_parts(self.address as *const u64, self.count) }.to_vec()
    }
}
