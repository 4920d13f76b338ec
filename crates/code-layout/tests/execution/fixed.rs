//! An executable that is not position-independent: absolute jump tables, a code cache below 2 GiB.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use code_layout::{
    CallSites, Function, FunctionId, Image, LayoutOrder, LayoutPlan, PatchSelection, Placement,
    Profile, Skip, check, emit,
};

const CACHE: u64 = 0x1000_0000;

/// What the program ends with where it cannot have the cache's place.
const TAKEN: i32 = 9;

fn output(program: &Path, arguments: &[&str]) -> String {
    // Its heap begins anywhere in the first GiB (`arch_randomize_brk` in
    // arch/x86/kernel/process.c), now and then in that place.
    let mut runs = (0..20).map(|_| {
        Command::new(program)
            .args(arguments)
            .output()
            .expect("it runs")
    });
    let is_other = |output: &Output| output.status.code() != Some(TAKEN);
    let output = runs.find(is_other).expect("room for the cache");
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_fixed_executable_in_every_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/fixed.c");
    let program = directory.path().join("fixed");
    for level in ["-O1", "-O2"] {
        let status = Command::new("gcc")
            .args(["-no-pie", "-fno-pie", level, "-s", "-o"])
            .arg(&program)
            .arg(&source)
            .status()
            .expect("gcc runs");
        assert!(status.success());
        let expected = output(&program, &[]);
        let image = Image::parse(std::fs::read(&program).expect("the program")).expect("an image");
        assert!(!image.is_position_independent());
        let functions: Vec<_> = (0..image.functions().len())
            .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
            .collect();
        let absolute = functions
            .iter()
            .flat_map(|function| &function.tables)
            .filter(|table| table.entry_bytes == 8);
        assert!(absolute.count() > 0);
        // What they lead to is only jumped to.
        let is_lost = |function: &&Function| {
            !function.tables.is_empty() && function.skipped.contains_key(&Skip::AddressTaken)
        };
        assert_eq!(functions.iter().find(is_lost), None, "{level}");
        for order in [
            LayoutOrder::Original,
            LayoutOrder::Random(5),
            LayoutOrder::Random(6),
        ] {
            let plan = LayoutPlan::new(functions.clone(), &Profile::default(), order);
            let placement = Placement {
                cache_address: CACHE,
                cache_bytes: 16 << 20,
                patches: PatchSelection {
                    entries: true,
                    call_sites: CallSites::Moved,
                    vtables: true,
                    jump_tables: true,
                },
                ..Placement::default()
            };
            let emitted = emit(&image, &plan, &placement).expect("emitted");
            check(&image, &plan, &placement, &emitted).expect("right");
            assert!(
                emitted
                    .patches
                    .iter()
                    .any(|patch| patch.kind == code_layout::PatchKind::JumpTable)
            );
            let mut lines = String::new();
            for patch in &emitted.patches {
                let bytes = patch.new.iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                let _ = writeln!(lines, "{:x} {bytes}", patch.vaddr);
            }
            let (code, patches) = (
                directory.path().join("code"),
                directory.path().join("patches"),
            );
            std::fs::write(&code, &emitted.bytes).expect("written");
            std::fs::write(&patches, lines).expect("written");
            let arguments = [
                code.to_str().expect("UTF-8"),
                patches.to_str().expect("UTF-8"),
                "10000000",
            ];
            assert_eq!(output(&program, &arguments), expected, "{level} {order:?}");
        }
    }
}
