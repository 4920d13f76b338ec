//! The table of rules in the manual names tests that exist.

const TABLE: &str = include_str!("../../../../../docs/tcp.md");
const SOURCES: &[&str] = &[
    include_str!("floods.rs"),
    include_str!("foreign.rs"),
    include_str!("oracle.rs"),
    include_str!("pair.rs"),
    include_str!("rules_close.rs"),
    include_str!("rules_data.rs"),
    include_str!("rules_handshake.rs"),
    include_str!("rules_loss.rs"),
    include_str!("rules_network.rs"),
    include_str!("rules_security.rs"),
    include_str!("shares.rs"),
    include_str!("../buffer.rs"),
    include_str!("../congestion.rs"),
    include_str!("../directory.rs"),
    include_str!("../neighbours.rs"),
    include_str!("../reassembly.rs"),
    include_str!("../recovery.rs"),
    include_str!("../rtt.rs"),
    include_str!("../secrets.rs"),
];

#[test]
fn every_test_of_the_table_of_rules_exists() {
    let words = TABLE.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        word.contains('_') && word.bytes().all(plain)
    };
    let names: Vec<&str> = words.filter(is_name).collect();
    assert!(names.len() > 90, "only {} names were found", names.len());
    for name in names {
        let head = format!("fn {name}(");
        assert!(
            SOURCES.iter().any(|source| source.contains(&head)),
            "docs/tcp.md names {name}, and there is no such test"
        );
    }
}
