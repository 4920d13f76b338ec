//! `slackline isolate` on control groups v2, in a small guest whose kernel has nothing on v1.

use std::time::Duration;

use serde_json::Value;

use crate::machine::Machine;

/// About 60 s on an idle machine.
const GUEST_TIMEOUT: Duration = Duration::from_secs(400);
const INIT: &str = include_str!("guest/isolate.sh");
const CONFIG: &str = "[service]\nname = \"web\"\ncgroup = \"service\"\nobjective = { p99_ms = 5, window_s = 1 }\n\
     latency = { command = [\"cat\", \"/tmp/latency\"] }\n[[best_effort]]\ncgroup = \"batch\"\n";
/// The setting of the service is written last.
const MEMORY: &str = "[service]\nname = \"inner\"\ncgroup = \"above/inner\"\nobjective = { p99_ms = 5 }\n\
     latency = { command = [\"cat\", \"/tmp/latency\"] }\n[[best_effort]]\ncgroup = \"batch\"\n[policy]\n\
     name = \"static\"\nstatic = { memory_high_mib = 64, service_memory_low_mib = 32 }\n";

#[test]
fn control_groups_v2_are_steered_and_restored() {
    let Some(machine) = Machine::new(INIT) else {
        return;
    };
    machine.install(assert_cmd::cargo::cargo_bin!("slackline"));
    machine.write("spec/isolate.toml", CONFIG);
    machine.write("spec/memory.toml", MEMORY);
    let guest = machine.boot("cgroup_no_v1=all", &[]);
    let steps = guest.finish(GUEST_TIMEOUT);

    let text = steps.with_code("selftest", 0);
    let rows: Value = serde_json::from_str(text).unwrap();
    for actuator in ["quota", "weight", "cpu.idle", "freezer", "memory.high"] {
        let row = rows.as_array().unwrap().iter();
        let row = row.clone().find(|row| row["actuator"] == actuator);
        let row = row.unwrap_or_else(|| panic!("no {actuator}: {rows}"));
        assert!(row["form"].as_str().unwrap().contains("v2"), "{row}");
        assert!(row["trouble"].is_null(), "{row}");
        assert_ne!(row["after"], row["before"], "{row}");
        assert_eq!(row["restored"], row["before"], "{row}");
    }
    assert_eq!(steps.with_code("controllers", 0).trim(), "");

    for (step, said) in [
        ("idle", "cpu.idle 1"),
        ("stopped", "cgroup.freeze 1"),
        ("thawed", "cgroup.freeze 0"),
        ("limited", "cpu.max 20000 100000"),
        ("open", "cpu.max max 100000"),
        ("frozen", "cgroup.freeze 1"),
        ("again", "cpu.idle 1"),
        ("unfrozen", "cpu.idle 0"),
    ] {
        assert_eq!(steps.with_code(step, 0).trim(), said, "{}", steps.console);
    }
    let before = steps.with_code("before", 0);
    assert!(before.contains("cpu.weight 100"), "{before}");
    for step in ["after", "killed"] {
        assert_eq!(steps.with_code(step, 0), before, "{step}");
    }
    for (step, high, low) in [
        ("unlimited", "max", "0"),
        ("protected", "67108864", "33554432"),
        ("unprotected", "max", "0"),
    ] {
        let wanted = format!(
            "batch/memory.high {high}\nabove/memory.low {low}\nabove/inner/memory.low {low}"
        );
        assert_eq!(steps.with_code(step, 0).trim(), wanted, "{step}");
    }
    steps.with_code("report", 0);
}
