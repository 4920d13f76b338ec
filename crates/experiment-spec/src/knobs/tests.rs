//! Tests of the values of knobs.

use super::*;
use crate::SpecContext;

/// The space of a specification with one knob that reads so, and of the keys given.
fn space_of(live: &str, keys: &str) -> Result<bayes_opt::Space, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("proc/sys/kernel")).unwrap();
    std::fs::write(dir.path().join("proc/sys/kernel/knob"), live).unwrap();
    let path = dir.path().join("spec.toml");
    let text = format!("[[parameters]]\nname = \"knob\"\nsysctl = \"kernel.knob\"\n{keys}\n");
    std::fs::write(&path, text).unwrap();
    SpecContext::new(&Roots::at(dir.path()))
        .load_space(&path)
        .map(|(space, ..)| space)
        .map_err(|error| error.to_string())
}

#[test]
fn a_file_s_text_is_not_repeated() {
    let file = |path: &str| Knob::File(path.into());
    let secret = "{\n  \"write_token\": \"8e35f075\"\n}";
    for (knob, live, expected) in [
        (file("/srv/app/token"), "hunter2", None),
        (file("/srv/app/serve.json"), secret, None),
        (file("/srv/app/level"), "5 7", Some("5 7")),
        (
            file("/sys/kernel/mm/thp"),
            "always [never]",
            Some("always [never]"),
        ),
        (Knob::Sysctl("a.b".into()), "cubic", Some("cubic")),
    ] {
        assert_eq!(shown(&knob, live), expected);
        let told = found_in(&knob, live);
        assert_eq!(told.contains(live), expected.is_some(), "{told}");
    }
}

#[test]
fn no_limit_is_a_value_of_its_own() {
    let keys = "type = \"int\"\nlow = 268435456\nhigh = 4294967296\nscale = \"log\"";
    for live in [
        "18446744073692774399",
        "9223372036854771712",
        "-1",
        "max",
        "0",
    ] {
        let space = space_of(live, keys).unwrap();
        let parameter = &space.parameters()[0];
        assert_eq!(
            parameter.kind,
            bayes_opt::Kind::Int {
                low: 268_435_456,
                high: 4_294_967_296,
                step: 1,
                log: true
            },
            "{live}"
        );
        let control = space.default_configuration();
        assert_eq!(control.get("knob").unwrap().to_string(), live);
        assert_eq!(parameter.special.len(), 1, "{live}");
    }
    // A number that the author's range has is an ordinary one, and so is a large one that means
    // itself.
    let space = space_of("-1", "type = \"int\"\nlow = -1\nhigh = 2").unwrap();
    assert!(space.parameters()[0].special.is_empty());
    let space = space_of("65536", "type = \"int\"\nlow = 1\nhigh = 1024").unwrap();
    assert!(space.parameters()[0].special.is_empty());
    let error = space_of("auto", "type = \"int\"\nlow = 1\nhigh = 1024").unwrap_err();
    assert!(error.contains("not of this type"), "{error}");
}

#[test]
fn a_value_pinned_as_the_controls_stays_apart() {
    let keys = "name = \"knob\"\ntype = \"int\"\nlow = 1\nhigh = 1024";
    let mut spec: ParameterSpec = toml::from_str(keys).unwrap();
    spec.pin(&Value::Text("18446744073692774399".into()));
    assert_eq!(spec.high, Some(1024.0));
    assert_eq!(spec.special.len(), 1);
    let mut spec: ParameterSpec = toml::from_str(keys).unwrap();
    spec.pin(&Value::Int(4096));
    assert_eq!(spec.high, Some(4096.0));
}

#[test]
fn a_list_is_tuned_value_by_value() {
    let keys = "type = \"int\"\nlow = 1\nhigh = 100000000";
    let whole = space_of("4096 131072 6291456", keys).unwrap_err();
    assert!(whole.contains("kernel.knob[2]"), "{whole}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("proc/sys/net/ipv4")).unwrap();
    let live = dir.path().join("proc/sys/net/ipv4/tcp_rmem");
    std::fs::write(live, "4096\t131072\t6291456\n").unwrap();
    let path = dir.path().join("spec.toml");
    let parameter = |name: &str, index: usize| {
        format!(
            "[[parameters]]\nname = \"{name}\"\ntype = \"int\"\nlow = 1\nhigh = 100000000\nsysctl = \"net.ipv4.tcp_rmem[{index}]\"\n"
        )
    };
    let check = |text: String| {
        std::fs::write(&path, text).unwrap();
        let source = crate::Source::read(&path)?;
        let spec = source.parse()?;
        let roots = Roots::at(dir.path());
        super::super::parameters::check_space(&spec, &source, &SpecContext::new(&roots))
    };
    let checked = check(parameter("usual", 1) + &parameter("most", 2)).unwrap();
    let control = checked.space.default_configuration();
    assert_eq!(control.get("most"), Some(&Value::Int(6_291_456)));
    let element = checked.knobs["most"].element.as_ref().unwrap();
    assert_eq!(element.index, 2);
    assert_eq!(element.list, ["4096", "131072", "6291456"]);
    for (text, words) in [
        (parameter("a", 3), "has 3 values here"),
        (parameter("a", 1) + &parameter("b", 1), "parameter `a`"),
    ] {
        let error = check(text).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}
