//! A tracepoint's format, and bodies of records. The fuzz targets use it too.

pub(crate) const SWITCH: &str = "name: sched_switch\nID: 316\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\n\
    print fmt: \"prev_comm=%s\", REC->prev_comm\n";

/// Time 5, CPU 3, four bytes of tracepoint 316.
pub(crate) fn sample() -> Vec<u8> {
    let mut body = 5_u64.to_le_bytes().to_vec();
    body.extend(3_u32.to_le_bytes());
    body.extend(0_u32.to_le_bytes());
    body.extend(4_u32.to_le_bytes());
    body.extend([60, 1, 9, 9, 0, 0, 0, 0]);
    body
}

/// Twelve records lost.
pub(crate) fn lost() -> Vec<u8> {
    [0, 12_u64].map(u64::to_le_bytes).concat()
}

/// Thread 8 of process 7 at 0x1234.
pub(crate) fn tick() -> Vec<u8> {
    let mut body = 0x1234_u64.to_le_bytes().to_vec();
    body.extend(ids());
    body
}

/// Three branches of process 7. The second one is of a wrong path.
pub(crate) fn branches() -> Vec<u8> {
    let wrong = 1 << 24;
    let numbers = [
        3,
        0x120_u64,
        0x200,
        1,
        0x66,
        0x77,
        wrong,
        0x15,
        0x100,
        2 << 24,
    ];
    let mut body = ids();
    body.extend(numbers.map(u64::to_le_bytes).concat());
    body
}

fn ids() -> Vec<u8> {
    [7, 8_u32].map(u32::to_le_bytes).concat()
}
