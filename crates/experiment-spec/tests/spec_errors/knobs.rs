//! Parameters that are knobs of the kernel.

use host::Roots;

use crate::fixture::{fake, with_knob};
use crate::{SOUND, error_in, load};

#[test]
fn an_absent_knob_is_an_error_unless_it_is_optional() {
    let (tree, roots) = fake();
    let error = error_in("spec.toml", &with_knob("sysctl = \"vm.absent\""), &roots);
    assert_eq!(
        error.replace(&tree.path().display().to_string(), ""),
        "spec.toml:20: parameters[1].sysctl: /proc/sys/vm/absent does not exist on this host; \
         set optional = true to leave the parameter out where it is absent"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(&path, with_knob("sysctl = \"vm.absent\"\noptional = true")).unwrap();
    let spec = load(&path, &roots).unwrap();
    assert_eq!(spec.skipped.len(), 1);
    assert!(spec.skipped[0].starts_with("knob: "), "{:?}", spec.skipped);
    assert!(spec.knobs.is_empty());
    assert!(spec.space.default_configuration().get("knob").is_none());
}

/// What cannot be read back could not be undone. Only a real kernel refuses root the reading.
#[test]
fn a_knob_that_only_takes_values_is_refused_before_anything_is_written() {
    let roots = Roots::default();
    let path = host::Knob::Sysctl("vm.compact_memory".into()).path(&roots);
    if !path.exists() {
        println!("SKIP: no vm.compact_memory here");
        return;
    }
    let knob = "sysctl = \"vm.compact_memory\"";
    let error = error_in("spec.toml", &with_knob(knob), &roots);
    assert_eq!(
        error,
        "spec.toml:20: parameters[1].sysctl: /proc/sys/vm/compact_memory is write-only: its value cannot be \
         read, so a change could not be undone; remove it from the experiment, or set optional = true"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(&path, with_knob(&format!("{knob}\noptional = true"))).unwrap();
    let spec = load(&path, &roots).unwrap();
    assert!(spec.skipped[0].contains("write-only"), "{:?}", spec.skipped);
    assert!(spec.knobs.is_empty());
}

#[test]
fn a_knob_is_one_parameter_s_however_it_is_written() {
    let (tree, roots) = fake();
    let knob = with_knob("sysctl = \"vm.swappiness\"");
    for again in [
        "sysctl = \"vm/swappiness\"".to_owned(),
        "sysctl = \"vm.swappiness\"".to_owned(),
    ] {
        let again = format!(
            "{knob}[[parameters]]\nname = \"again\"\ntype = \"int\"\nlow = 0\nhigh = 100\n{again}\n"
        );
        let error = error_in("spec.toml", &again, &roots);
        assert_eq!(
            error.replace(&tree.path().display().to_string(), ""),
            "spec.toml:26: parameters[2].sysctl: parameter `knob` (parameters[1].sysctl) already sets \
             /proc/sys/vm/swappiness: remove one of the two"
        );
    }
}

#[test]
fn a_knob_takes_the_live_value_as_its_default() {
    let (_tree, roots) = fake();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(&path, with_knob("sysctl = \"vm.swappiness\"")).unwrap();
    let spec = load(&path, &roots).unwrap();
    assert_eq!(
        spec.space.default_configuration().get("knob"),
        Some(&60_i64.into())
    );
    assert_eq!(
        error_in("spec.toml", &with_knob("optional = true"), &roots),
        "spec.toml:20: parameters[1].optional: only a kernel knob can be absent"
    );
}

#[test]
fn kernel_knobs_cannot_differ_side_by_side() {
    let (_tree, roots) = fake();
    let text = SOUND
        .replacen("default = 16", "sysctl = \"vm.swappiness\"", 1)
        .replacen("[target]", "[target]\npairing = \"parallel\"", 1);
    let error = error_in("spec.toml", &text, &roots);
    assert!(
        error.starts_with("spec.toml:9: target.pairing: kernel knobs belong to the whole host"),
        "{error}"
    );
}

#[test]
fn a_sched_knob_is_of_the_targets_threads() {
    let (_tree, roots) = fake();
    let sched = |keys: &str| {
        SOUND.replacen("default = 16", keys, 1).replacen(
            "[target]",
            "[target]\npairing = \"parallel\"",
            1,
        )
    };
    // Each instance has threads of its own, so they can differ side by side.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(
        &path,
        sched("default = 2\nsched = \"nice\"").replacen("high = 32", "high = 19", 1),
    )
    .unwrap();
    let spec = load(&path, &roots).unwrap();
    assert_eq!(
        spec.knobs["threads"].knob.to_string(),
        "nice of each instance's threads"
    );
    for (keys, error) in [
        (
            "default = 2\nsched = \"nice\"",
            "spec.toml:6: parameters[0].high: \"32\" is none: a nice value is a whole number from -20 to 19",
        ),
        (
            "default = 2\nsched = \"slice_us\"",
            "spec.toml:7: parameters[0].values: \"2\" is none: a slice is 100 to 100000 microseconds",
        ),
    ] {
        let found = error_in("spec.toml", &sched(keys), &roots);
        assert!(
            found.contains(&error[error.find("parameters").unwrap()..]),
            "{found}"
        );
    }
    // Nothing says whose threads.
    let observed = SOUND
        .replacen("start = [\"sleep\", \"9\"]", "", 1)
        .replacen("default = 16", "sched = \"nice\"", 1)
        .replacen("high = 32", "high = 19", 1);
    let error = error_in("spec.toml", &observed, &roots);
    assert!(
        error.contains("parameters[0].sched: sched needs the threads of a service"),
        "{error}"
    );
}

#[test]
fn a_step_for_parameters_names_what_there_is() {
    let step = |name: &str| {
        let apply = format!(
            "[[target.apply]]\ncommand = [\"true\"]\nparameters = [\"{name}\"]\n[workload]"
        );
        error_in(
            "spec.toml",
            &SOUND.replacen("[workload]", &apply, 1),
            &Roots::default(),
        )
    };
    assert!(
        step("wokers").ends_with(
            "target.apply[0].parameters[0]: \"wokers\" is neither a parameter nor a variable"
        ),
        "{}",
        step("wokers")
    );
}

#[test]
fn yaml_is_told_what_is_read() {
    for name in ["spec.yaml", "spec.yml"] {
        let error = error_in(name, "parameters:\n  - name: x\n", &Roots::default());
        assert!(
            error.starts_with(&format!(
                "{name}: YAML is not read: write the specification as TOML, or as JSON"
            )),
            "{error}"
        );
    }
}

#[test]
fn a_file_is_one_knob_whatever_it_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::write(at("limit"), "5\n").unwrap();
    std::fs::hard_link(at("limit"), at("hard")).unwrap();
    std::os::unix::fs::symlink("limit", at("soft")).unwrap();
    std::os::unix::fs::symlink(dir.path(), at("sub/up")).unwrap();
    let knob = with_knob(&format!("file = \"{}\"", at("limit")));
    for name in ["sub/../limit", "./limit", "hard", "soft", "sub/up/limit"] {
        let again = at(name);
        let text = format!(
            "{knob}[[parameters]]\nname = \"again\"\ntype = \"int\"\nlow = 0\nhigh = 100\nfile = \"{again}\"\n"
        );
        let error = error_in("spec.toml", &text, &Roots::default());
        let limit = at("limit");
        assert_eq!(
            error,
            format!(
                "spec.toml:26: parameters[2].file: parameter `knob` (parameters[1].file) already sets {again}, as {limit}: remove one of the two"
            )
        );
    }
    std::fs::remove_file(at("hard")).unwrap();
    // A file that is made from a template is no knob, and no other file of the target.
    std::fs::write(at("template"), "{threads}\n").unwrap();
    let told = knob.replacen(
        "start = [\"sleep\", \"9\"]",
        "apply = [{ command = [\"true\"] }]\nfiles = [FILES]",
        1,
    );
    let file = |path: &str| {
        format!(
            "{{ template = \"{}\", path = \"{}\" }}",
            at("template"),
            at(path)
        )
    };
    let cases = [
        (
            file("soft"),
            "target.files[0].path: ",
            "is set by the parameter `knob` (parameters[1]), too",
        ),
        (
            file("template"),
            "target.files[0].path: ",
            "is the template itself",
        ),
        (
            [file("sub/up/new"), file("new")].join(", "),
            "target.files[1].path: ",
            "are one file: remove one of the two",
        ),
    ];
    for (files, key, why) in cases {
        let error = error_in(
            "spec.toml",
            &told.replace("FILES", &files),
            &Roots::default(),
        );
        assert!(
            error.contains(key) && error.contains(why),
            "{key}{why}: {error}"
        );
    }
}
