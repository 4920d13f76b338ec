//! A record written, read, interrupted and damaged.

use isolation::{ActuatorSetting, Reason};

use super::*;
use crate::status::tests::status;

fn note(at_s: f64) -> RecordLine {
    RecordLine::Note {
        at_s,
        text: format!("note {at_s}"),
    }
}

fn row(at_s: f64) -> RecordLine {
    let mut row = status();
    row.at_s = at_s;
    RecordLine::Row(Box::new(row))
}

/// A record of one row in a directory of its own.
fn begun() -> (tempfile::TempDir, PathBuf, Recorder) {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("run");
    let mut recorder = Recorder::create(&directory).unwrap();
    assert_eq!(recorder.write(&row(0.5), Instant::now()), None);
    (dir, directory, recorder)
}

#[test]
fn a_record_is_read_back_without_its_torn_last_line_and_a_damaged_one_is_named_once() {
    let (_dir, directory, mut recorder) = begun();
    let decision = Decision::group("batch", ActuatorSetting::Off(true), Reason::NoData);
    let entry = RecordLine::Decision {
        at_s: 1.0,
        decision: decision.clone(),
        outcome: DecisionOutcome::Refused("no".to_owned()),
    };
    let now = Instant::now();
    assert_eq!(recorder.write(&entry, now), None);
    assert_eq!(recorder.write(&note(2.0), now), None);
    recorder.file.write_all(b"{\"note\":{\"at").unwrap();
    let recorded = read(&directory).unwrap();
    assert_eq!(
        recorded.decisions,
        [(1.0, decision, DecisionOutcome::Refused("no".to_owned()))]
    );
    assert_eq!((recorded.rows.len(), recorded.notes.len()), (1, 1));
    recorder.file.write_all(b"\n{}\n").unwrap();
    let error = read(&directory).unwrap_err().to_string();
    assert!(error.contains("run.jsonl:4: "), "{error}");
    assert!(!error.contains(" line "), "{error}");
    // A last line that is whole was not cut short.
    let path = directory.join(NAME);
    fs::write(&path, "garbage\n").unwrap();
    let error = read(&directory).unwrap_err().to_string();
    assert!(error.ends_with("run.jsonl:1: expected value"), "{error}");
}

#[test]
fn a_record_without_a_row_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let of_note = serde_json::to_string(&note(1.0)).unwrap() + "\n";
    for text in ["", "{\"note\":", of_note.as_str()] {
        fs::write(&path, text).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("run.jsonl has no row"), "{error}");
    }
}

#[test]
fn the_record_of_another_run_is_kept_and_a_run_that_recorded_nothing_leaves_none() {
    let (_dir, directory, recorder) = begun();
    drop(recorder);
    let path = directory.join(NAME);
    let before = fs::read(&path).unwrap();
    let error = Recorder::create(&directory).err().unwrap().to_string();
    let wanted = "run.jsonl is the recording of another run: name another directory";
    assert!(error.contains(wanted), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    // A file that is empty, too: it may be that of a run that has just begun.
    fs::write(&path, "").unwrap();
    assert!(Recorder::create(&directory).is_err());
    fs::remove_file(&path).unwrap();
    drop(Recorder::create(&directory).unwrap());
    assert!(!path.exists());
}

#[test]
fn a_full_disk_makes_a_gap_that_is_said_once_and_recorded() {
    let (_dir, directory, mut recorder) = begun();
    let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
    let disk = std::mem::replace(&mut recorder.file, full);
    let began = Instant::now();
    let said = recorder.write(&note(1.0), began).unwrap();
    assert!(
        said.starts_with("the recording has paused since 1.0 s: "),
        "{said}"
    );
    assert!(said.contains("No space left on device"), "{said}");
    let words = recorder.in_words().unwrap();
    assert!(said.starts_with(&words), "{words}");
    // It is not tried at each line, and a further failure is nothing new.
    assert_eq!(recorder.write(&note(2.0), began), None);
    let later = began + AGAIN_AFTER;
    assert_eq!(recorder.write(&note(61.0), later), None);
    assert!(recorder.in_words().is_some());
    // Room again, behind half a line.
    let whole = disk.metadata().unwrap().len();
    recorder.file = disk;
    recorder.file.write_all(b"{\"note\":{\"at").unwrap();
    recorder.torn_from = Some(whole);
    assert_eq!(recorder.write(&note(62.0), later), None);
    let said = recorder.write(&note(121.0), later + AGAIN_AFTER).unwrap();
    let wanted = "the recording goes on: 4 lines from 1.0 s on are missing: ";
    assert!(said.starts_with(wanted), "{said}");
    assert_eq!(recorder.in_words(), None);
    let notes = read(&directory).unwrap().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].1.starts_with("the recording has a gap: 4 lines"));
    assert_eq!(notes[1], (121.0, "note 121".to_owned()));
}

#[test]
fn a_record_that_is_removed_pauses_until_its_directory_is_there_again() {
    let (_dir, directory, mut recorder) = begun();
    fs::remove_dir_all(&directory).unwrap();
    let began = Instant::now();
    let said = recorder.write(&note(1.0), began).unwrap();
    assert!(said.contains("the file has been removed"), "{said}");
    assert_eq!(recorder.write(&note(61.0), began + AGAIN_AFTER), None);
    fs::create_dir(&directory).unwrap();
    let said = recorder.write(&row(121.0), began + 2 * AGAIN_AFTER);
    assert!(said.unwrap().starts_with("the recording goes on: 2 lines"));
    assert_eq!(read(&directory).unwrap().rows.len(), 1);
}

#[test]
fn a_record_ends_at_its_limit() {
    let (_dir, directory, mut recorder) = begun();
    // A sparse file takes no room.
    recorder.file.set_len(BYTES_MAX).unwrap();
    let said = recorder.write(&note(1.0), Instant::now()).unwrap();
    assert!(said.starts_with("the recording has ended: "), "{said}");
    assert_eq!(recorder.in_words(), Some(said));
    let length = || directory.join(NAME).metadata().unwrap().len();
    let before = length();
    assert_eq!(recorder.write(&note(2.0), Instant::now()), None);
    assert_eq!(length(), before);
}
