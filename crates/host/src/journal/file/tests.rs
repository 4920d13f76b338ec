//! Replaced files, and knobs that are ordinary files.

use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};

use super::super::{RestoreOutcome, RestoreReport};
use super::*;
use crate::files::attributes;
use crate::journal::tests::host;
use crate::roots::Roots;

#[test]
fn a_replaced_file_gets_its_contents_and_mode_back() {
    let (dir, roots, state) = host();
    let (config, made, link) = (
        dir.path().join("nginx.conf"),
        dir.path().join("made.conf"),
        dir.path().join("link"),
    );
    fs::write(&config, "workers 1;").unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&config, &link).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    journal.replace_file(&link, b"workers 2;").unwrap();
    journal.replace_file(&config, b"workers 3;").unwrap();
    journal.replace_file(&made, b"new").unwrap();
    assert_eq!(fs::read(&config).unwrap(), b"workers 3;");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(
        fs::metadata(&config).unwrap().permissions().mode() & 0o7777,
        0o640
    );
    assert_eq!(fs::read_dir(state.join("files")).unwrap().count(), 1);
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(
        report
            .items
            .iter()
            .all(|item| item.outcome == RestoreOutcome::Restored),
        "{report:?}"
    );
    assert_eq!(fs::read(&config).unwrap(), b"workers 1;");
    assert_eq!(
        fs::metadata(&config).unwrap().permissions().mode() & 0o7777,
        0o640
    );
    assert!(!made.exists() && !state.join("files").exists());

    journal.replace_file(&config, b"workers 4;").unwrap();
    fs::write(&config, "edited").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(matches!(
        report.items[0].outcome,
        RestoreOutcome::ChangedByOther { .. }
    ));
    assert_eq!(fs::read(&config).unwrap(), b"edited");
    assert!(matches!(
        journal.replace_file(dir.path(), b""),
        Err(HostError::Irreplaceable { .. })
    ));
    let nowhere = journal.replace_file(&dir.path().join("no/such/file"), b"");
    assert!(matches!(
        nowhere,
        Err(HostError::Write {
            errno: libc::ENOENT,
            ..
        })
    ));
    assert!(journal.is_empty());
}

#[test]
fn a_replaced_file_that_somebody_else_changed_is_not_replaced_again() {
    let (dir, roots, state) = host();
    let config = dir.path().join("nginx.conf");
    fs::write(&config, "workers 1;").unwrap();
    let mut journal = Journal::open(&state).unwrap();
    journal.replace_file(&config, b"workers 2;").unwrap();
    journal.check_files().unwrap();
    fs::write(&config, "workers 1; # by hand").unwrap();
    for disturbed in [
        journal.check_files(),
        journal.replace_file(&config, b"workers 3;"),
    ] {
        assert!(
            matches!(disturbed, Err(HostError::Disturbed { .. })),
            "{disturbed:?}"
        );
    }
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.changed_by_others().count(), 1);
    assert_eq!(fs::read(&config).unwrap(), b"workers 1; # by hand");
    // From here on that is what is there before.
    journal.replace_file(&config, b"workers 3;").unwrap();
    fs::remove_file(&config).unwrap();
    journal.check_files().unwrap();
    journal.replace_file(&config, b"workers 4;").unwrap();
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(fs::read(&config).unwrap(), b"workers 1; # by hand");
}

#[test]
fn an_edit_after_a_replacement_that_was_cut_short_is_left_alone() {
    let (dir, roots, state) = host();
    let config = dir.path().join("nginx.conf");
    fs::write(&config, "first").unwrap();
    let path = state.join("journal.jsonl");
    let cut = |contents: &str, kept_lines: usize| {
        let mut journal = Journal::open(&state).unwrap();
        journal.replace_file(&config, b"second").unwrap();
        journal.replace_file(&config, b"third").unwrap();
        drop(journal);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').take(kept_lines).collect();
        fs::write(&path, lines.concat()).unwrap();
        fs::write(&config, contents).unwrap();
        let mut journal = Journal::open(&state).unwrap();
        // Compacting forgets nothing of it.
        journal.rewrite(journal.pendings.clone()).unwrap();
        drop(journal);
        let mut journal = Journal::open(&state).unwrap();
        let report = journal.restore(&roots, false).unwrap();
        (
            report.items[0].outcome == RestoreOutcome::Restored,
            fs::read_to_string(&config).unwrap(),
        )
    };
    let first = || "first".to_owned();
    assert_eq!(cut("second", 3), (true, first()));
    assert_eq!(cut("third", 3), (true, first()));
    assert_eq!(cut("by hand", 3), (false, "by hand".to_owned()));
    fs::write(&config, "first").unwrap();
    assert_eq!(cut("second", 1), (true, first()));
    assert_eq!(cut("by hand", 1), (false, "by hand".to_owned()));
}

#[test]
fn what_a_promoted_file_held_before_is_kept_if_somebody_else_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, state) = (dir.path().join("f.conf"), dir.path().join("state"));
    fs::write(&path, "# by hand\nthreads 4\n").unwrap();
    let promoted = |contents: &str| {
        let mut journal = Journal::open(&state).unwrap();
        journal.replace_file(&path, b"tried").unwrap();
        journal.replace_file(&path, contents.as_bytes()).unwrap();
        let former = journal.promote_all().unwrap();
        assert!(journal.is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        former.into_iter().map(|former| {
            assert_eq!(former.path, path);
            fs::read_to_string(former.kept).unwrap()
        })
    };
    let kept = |contents: &str| promoted(contents).collect::<Vec<String>>();
    assert_eq!(kept("threads 8\n"), ["# by hand\nthreads 4\n"]);
    // Rolled back, and promoted again: that was ours.
    assert!(kept("threads 4\n").is_empty());
    assert!(kept("threads 8\n").is_empty());
    fs::write(&path, "threads 8 # was 4\n").unwrap();
    assert_eq!(kept("threads 9\n"), ["threads 8 # was 4\n"]);
    // An index that cannot be read costs a copy.
    fs::write(state.join("replaced/ours.json"), "{").unwrap();
    assert_eq!(kept("threads 8\n"), ["threads 9\n"]);
}

#[test]
fn a_knob_that_is_an_ordinary_file_comes_back_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("knob");
    let knob = Knob::File(path.clone());
    let state = dir.path().join("state");
    // What is written last is another value, or the first one, of which only the end is missing.
    for (contents, last) in [
        ("5", "7"),
        ("  5 \n\n", "5"),
        ("5\n", "7"),
        ("a\t b", "c"),
        ("", "7"),
        ("\n", "7"),
    ] {
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut journal = Journal::open(&state).unwrap();
        for value in ["6", last] {
            journal.write(&Roots::default(), &knob, value).unwrap();
        }
        drop(journal);
        let mut journal = Journal::open(&state).unwrap();
        let report = journal.restore(&Roots::default(), false).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }
}

/// A list of one user beside owner, group and mask (include/uapi/linux/posix_acl_xattr.h).
fn access_list(user: u32) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, 6, user),
        (0x04, 0, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn a_replaced_file_keeps_its_access_list_and_attributes() {
    let (dir, roots, state) = host();
    let path = dir.path().join("f.conf");
    fs::write(&path, "first").unwrap();
    let file = File::open(&path).unwrap();
    let mut wanted = BTreeMap::from([
        ("system.posix_acl_access", access_list(65534)),
        ("user.note", b"by hand".to_vec()),
        // cap_net_bind_service, effective (include/uapi/linux/capability.h, `vfs_cap_data`).
        (
            "security.capability",
            [0x0200_0001u32, 1 << 10, 0, 0, 0]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect(),
        ),
    ]);
    wanted.retain(|name, value| fsetxattr(&file, *name, value, XattrFlags::empty()).is_ok());
    if wanted.is_empty() {
        println!("SKIP: no extended attributes in {}", dir.path().display());
        return;
    }
    let found = || {
        let file = File::open(&path).unwrap();
        (
            attributes(&file).unwrap(),
            file.metadata().unwrap().permissions().mode(),
        )
    };
    let first = found();
    assert!(wanted.iter().all(|(name, value)| first.0[*name] == *value));
    // What a new file of this directory gets is not what this one had.
    let other = File::open(dir.path()).unwrap();
    let _ = fsetxattr(
        &other,
        "system.posix_acl_default",
        &access_list(12345),
        XattrFlags::empty(),
    );
    let mut journal = Journal::open(&state).unwrap();
    for contents in ["second", "third"] {
        journal.replace_file(&path, contents.as_bytes()).unwrap();
        assert_eq!(found(), first);
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(
        (fs::read(&path).unwrap(), found()),
        (b"first".to_vec(), first)
    );

    let bare = dir.path().join("bare.conf");
    fs::write(&bare, "first").unwrap();
    let file = File::open(&bare).unwrap();
    let _ = fremovexattr(&file, "system.posix_acl_access");
    let first = attributes(&file).unwrap();
    journal.replace_file(&bare, b"second").unwrap();
    assert_eq!(attributes(&File::open(&bare).unwrap()).unwrap(), first);
    assert!(journal.restore(&roots, false).unwrap().is_complete());
}

#[test]
fn a_file_with_a_second_hard_link_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("f.conf"), dir.path().join("other.conf"));
    fs::write(&path, "first").unwrap();
    fs::hard_link(&path, &other).unwrap();
    let mut journal = Journal::open(&dir.path().join("state")).unwrap();
    let error = journal.replace_file(&path, b"second").unwrap_err();
    assert!(error.to_string().contains("hard links"), "{error}");
    assert!(journal.is_empty());
    assert_eq!(fs::read(&path).unwrap(), b"first");
    fs::remove_file(other).unwrap();
    journal.replace_file(&path, b"second").unwrap();
}

#[test]
fn what_a_file_held_at_first_is_kept_where_somebody_else_changed_or_removed_it() {
    let (dir, roots, state) = host();
    let path = |name: &str| dir.path().join(name);
    let knob = |name: &str| Knob::File(path(name));
    for name in ["edited", "gone", "knob", "gone-knob", "ours"] {
        fs::write(path(name), format!(" the first {name} \n")).unwrap();
    }
    let mut journal = Journal::open(&state).unwrap();
    for name in ["edited", "gone", "made", "ours"] {
        journal.replace_file(&path(name), b"tried").unwrap();
    }
    for name in ["knob", "gone-knob"] {
        journal
            .write(&Roots::default(), &knob(name), "tried")
            .unwrap();
    }
    for name in ["edited", "made", "knob"] {
        fs::write(path(name), "tried, and a note\n").unwrap();
    }
    fs::remove_file(path("gone")).unwrap();
    fs::remove_file(path("gone-knob")).unwrap();
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    let kept = |report: RestoreReport| {
        assert!(report.is_complete(), "{report:?}");
        let items = report.items.into_iter();
        items
            .filter_map(|item| {
                let name = Path::new(&item.subject).file_name()?.to_str()?.to_owned();
                Some((name, item.kept?))
            })
            .collect::<BTreeMap<_, _>>()
    };
    let dry = kept(journal.restore(&Roots::default(), true).unwrap());
    assert!(!state.join("replaced").exists());
    let kept = kept(journal.restore(&Roots::default(), false).unwrap());
    assert_eq!(kept, dry);
    assert!(journal.is_empty() && !state.join("files").exists());
    let names: Vec<&str> = kept.keys().map(String::as_str).collect();
    assert_eq!(names, ["edited", "gone", "gone-knob", "knob"]);
    for (name, kept) in kept {
        assert_eq!(
            fs::read_to_string(kept).unwrap(),
            format!(" the first {name} \n")
        );
    }

    // What cannot be kept stays in the journal.
    journal.replace_file(&path("ours"), b"tried").unwrap();
    fs::write(path("ours"), "by hand").unwrap();
    fs::remove_dir_all(state.join("replaced")).unwrap();
    fs::write(state.join("replaced"), "in the way").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(!report.is_complete() && !journal.is_empty());
    fs::remove_file(state.join("replaced")).unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(report.is_complete() && report.items[0].kept.is_some());
}

#[test]
fn a_link_to_a_file_that_is_not_there_yet_stays() {
    let (dir, roots, state) = host();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("run")).unwrap();
    symlink("run", path("linked")).unwrap();
    symlink("linked/second.conf", path("first.conf")).unwrap();
    symlink(path("linked/made.conf"), path("run/second.conf")).unwrap();
    symlink("circle.conf", path("circle.conf")).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    for contents in ["tried", "tried again"] {
        journal
            .replace_file(&path("first.conf"), contents.as_bytes())
            .unwrap();
        assert_eq!(fs::read_to_string(path("run/made.conf")).unwrap(), contents);
    }
    assert_eq!(
        journal.describe(),
        [path("run/made.conf").display().to_string()]
    );
    let circle = journal.replace_file(&path("circle.conf"), b"tried");
    assert!(
        matches!(
            circle,
            Err(HostError::Read {
                errno: libc::ELOOP,
                ..
            })
        ),
        "{circle:?}"
    );
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert!(!path("run/made.conf").exists());
    for name in ["first.conf", "run/second.conf", "circle.conf"] {
        assert!(fs::symlink_metadata(path(name)).unwrap().is_symlink());
    }
}

/// Runs a command on a path; whether it succeeded.
fn does(command: &[&str], path: &Path) -> bool {
    let output = std::process::Command::new(command[0])
        .args(&command[1..])
        .arg(path)
        .output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn a_knob_that_is_an_ordinary_file_is_on_disk_before_the_journal_forgets_it() {
    let dir = tempfile::tempdir().unwrap();
    let (back, disk) = (dir.path().join("back"), dir.path().join("disk"));
    fs::create_dir(&back).unwrap();
    fs::create_dir(&disk).unwrap();
    // A disk that takes what is written to it until it is asked whether it has it: what it lies on
    // is full.
    let image = back.join("image");
    let made = does(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"], &back)
        && does(&["truncate", "-s", "16M"], &image)
        && does(
            &["mkfs.ext4", "-q", "-N", "16", "-O", "^has_journal"],
            &image,
        )
        && does(&["mount", "-o", "loop", &image.to_string_lossy()], &disk);
    if made {
        let path = disk.join("knob");
        // It takes more room than the pages of the disk have that are there already.
        let first = format!(" first{}", "\n".repeat(100_000));
        fs::write(&path, &first).unwrap();
        let result = std::panic::catch_unwind(|| {
            let knob = Knob::File(path.clone());
            let mut journal = Journal::open(&dir.path().join("state")).unwrap();
            journal.write(&Roots::default(), &knob, "tried").unwrap();
            // What the write has freed has its place already.
            let other = disk.join("other");
            fs::write(&other, vec![1; 256 << 10]).unwrap();
            File::open(&other).unwrap().sync_all().unwrap();
            fs::write(back.join("filler"), vec![0; 2 << 20]).unwrap_err();
            let report = journal.restore(&Roots::default(), false).unwrap();
            assert!(!report.is_complete() && !journal.is_empty(), "{report:?}");
            fs::remove_file(back.join("filler")).unwrap();
            fs::write(&path, "tried\n").unwrap();
            let report = journal.restore(&Roots::default(), false).unwrap();
            assert!(report.is_complete(), "{report:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), first);
        });
        assert!(does(&["umount"], &disk) && does(&["umount"], &back));
        result.unwrap();
    } else {
        println!("SKIP: a disk in a file needs root, mkfs.ext4 and a loop device");
        does(&["umount"], &back);
    }
}

#[test]
fn a_pipe_is_waited_for_by_nobody() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (dir, roots, state) = host();
    let path = dir.path().join("f.conf");
    let pipe = || mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    pipe();
    let mut journal = Journal::open(&state).unwrap();
    let error = journal.replace_file(&path, b"tried").unwrap_err();
    assert!(error.to_string().contains("a pipe"), "{error}");
    // Put in place of a file that is tried.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "first").unwrap();
    journal.replace_file(&path, b"tried").unwrap();
    fs::remove_file(&path).unwrap();
    pipe();
    journal.check_files().unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.changed_by_others().count(), 1);
    let kept = report.items[0].kept.as_ref().unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), "first");
}

#[test]
fn a_removed_file_that_is_written_again_comes_back() {
    let (dir, roots, state) = host();
    let config = dir.path().join("nginx.conf");
    fs::write(&config, "workers 1;").unwrap();
    let mut journal = Journal::open(&state).unwrap();
    assert!(journal.remove_file(&config).unwrap());
    assert!(!config.exists());
    assert!(!journal.remove_file(&config).unwrap());
    journal.replace_file(&config, b"workers 2;").unwrap();
    journal.restore(&roots, false).unwrap();
    assert_eq!(fs::read(&config).unwrap(), b"workers 1;");
    // What somebody else wrote is kept, as of a replaced file.
    assert!(journal.remove_file(&config).unwrap());
    let former = journal.promote_all().unwrap();
    assert!(!config.exists() && journal.is_empty());
    assert_eq!(fs::read(&former[0].kept).unwrap(), b"workers 1;");
}

#[test]
fn a_knob_s_ordinary_file_is_replaced_and_never_seen_half_written() {
    let (dir, roots, state) = host();
    fs::create_dir(dir.path().join("etc")).unwrap();
    let (file, link) = (dir.path().join("etc/limit"), dir.path().join("etc/link"));
    fs::write(&file, "5\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let has_attributes =
        rustix::fs::setxattr(&file, "user.note", b"mine", XattrFlags::empty()).is_ok();
    symlink("limit", &link).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    let knob = Knob::File("/etc/link".into());
    let mut before = File::open(&file).unwrap();
    let mut seen = |expected: &str| {
        let mut text = String::new();
        before.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
        before = File::open(&file).unwrap();
        let mode = before.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        let note = attributes(&before).unwrap().remove("user.note");
        assert_eq!(note.is_some(), has_attributes);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    };
    // Whoever has the file open still reads what it was.
    journal.write(&roots, &knob, "7").unwrap();
    seen("5\n");
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    seen("7\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "5\n");
    assert_eq!(fs::read_dir(dir.path().join("etc")).unwrap().count(), 2);
}

#[test]
fn a_knob_s_file_with_two_names_is_written_in_place() {
    let (dir, roots, state) = host();
    let (file, second) = (dir.path().join("limit"), dir.path().join("second"));
    fs::write(&file, "5\n").unwrap();
    fs::hard_link(&file, &second).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    let knob = Knob::File("/limit".into());
    journal.write(&roots, &knob, "7").unwrap();
    assert_eq!(fs::read_to_string(&second).unwrap(), "7\n");
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(fs::read_to_string(&second).unwrap(), "5\n");
}
