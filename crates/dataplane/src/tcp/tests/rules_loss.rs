//! Loss recovery (RFC 6298, 5681, 6582, 6675, 2018, 3042).

use super::script::{run, segments};

fn open(rest: &str) {
    run(&format!(
        "
        < S 0:0(0) win 60000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        {rest}"
    ));
}

fn open_with_sack(rest: &str) {
    run(&format!(
        "
        set sack on
        < S 0:0(0) win 60000 <mss 1000, sackOK>
        > S. 0:0(0) ack 1 <sackOK>
        < . 1:1(0) ack 1 win 60000
        event Knock
        {rest}"
    ));
}

#[test]
fn the_timeout_doubles_and_ends_with_news() {
    open(
        "
        write 100
        > . 1:101(100)
        +199
        > nothing
        +2
        > . 1:101(100)
        +398
        > nothing
        +2
        > . 1:101(100)
        +801
        > . 1:101(100)
        < . 1:1(0) ack 101
        write 100
        > . 101:201(100)
        +201
        > . 101:201(100)
    ",
    );
}

#[test]
fn after_too_many_timeouts_the_connection_is_dead() {
    run("
        set retries 3
        < S 0:0(0) win 60000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        write 100
        > . 1:101(100)
        +201
        > . 1:101(100)
        +401
        > . 1:101(100)
        +801
        > . 1:101(100)
        +1601
        event Dead TimedOut
    ");
}

#[test]
fn an_acknowledgement_starts_the_timer_anew() {
    open(
        "
        write 2000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        +150
        < . 1:1(0) ack 1001
        +180
        > nothing                 # RFC 6298 §5.3: 330 ms after it was sent
    ",
    );
}

#[test]
fn the_initial_window_is_ten_segments() {
    open(
        "
        write 12000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        > . 3001:4001(1000)
        > . 4001:5001(1000)
        > . 5001:6001(1000)
        > . 6001:7001(1000)
        > . 7001:8001(1000)
        > . 8001:9001(1000)
        > . 9001:10001(1000)
        > nothing
        < . 1:1(0) ack 2001       # slow start: two acknowledged, four may go
        > . 10001:11001(1000)
        > . 11001:12001(1000)
        > nothing
    ",
    );
}

#[test]
fn after_a_lost_syn_one_segment_goes_out_and_waits_for_three_seconds() {
    run("
        < S 0:0(0) win 60000 <mss 1000>
        > S. 0:0(0) ack 1
        +1001
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        write 3000
        > . 1:1001(1000)
        > nothing                 # RFC 5681 §3.1
        +2999
        > nothing                 # RFC 6298 §5.7
        +2
        > . 1:1001(1000)
    ");
}

#[test]
fn after_a_silence_the_window_is_the_initial_one_again() {
    let (first, second, third) = (segments(1, 10), segments(10_001, 4), segments(14_001, 14));
    let (fourth, last) = (segments(28_001, 6), segments(34_001, 10));
    open(&format!(
        "
        write 14000
        {first}
        < . 1:1(0) ack 2001       # slow start: the window is 12 segments now
        {second}
        < . 1:1(0) ack 14001
        write 20000
        {third}
        > nothing
        < . 1:1(0) ack 28001
        {fourth}
        < . 1:1(0) ack 34001
        +2000
        write 20000
        {last}
        > nothing                 # RFC 5681 §4.1
    "
    ));
}

#[test]
fn three_duplicates_send_again_without_sack() {
    open(
        "
        write 6000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        > . 3001:4001(1000)
        > . 4001:5001(1000)
        > . 5001:6001(1000)
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        > nothing
        < . 1:1(0) ack 1
        > . 1:1001(1000)
        > nothing
        < . 1:1(0) ack 1001       # partial: the next hole (RFC 6582 §3.2)
        > . 1001:2001(1000)
        < . 1:1(0) ack 6001
        > nothing
    ",
    );
}

#[test]
fn limited_transmit_sends_new_data_for_the_first_two_duplicates() {
    open(
        "
        write 14000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        > . 3001:4001(1000)
        > . 4001:5001(1000)
        > . 5001:6001(1000)
        > . 6001:7001(1000)
        > . 7001:8001(1000)
        > . 8001:9001(1000)
        > . 9001:10001(1000)
        < . 1:1(0) ack 1
        > . 10001:11001(1000)
        < . 1:1(0) ack 1
        > . 11001:12001(1000)
        < . 1:1(0) ack 1
        > . 1:1001(1000)
    ",
    );
}

#[test]
fn a_window_update_is_no_duplicate() {
    open(
        "
        write 2000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        < . 1:1(0) ack 1 win 50000
        < . 1:1(0) ack 1 win 40000
        < . 1:1(0) ack 1 win 30000
        < . 1:1(0) ack 1 win 20000
        > nothing
    ",
    );
}

#[test]
fn selective_acknowledgements_show_which_are_lost() {
    open_with_sack(
        "
        write 8000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        > . 3001:4001(1000)
        > . 4001:5001(1000)
        > . 5001:6001(1000)
        > . 6001:7001(1000)
        > . 7001:8001(1000)
        < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:2001, sack 3001:4001>
        > nothing
        < . 1:1(0) ack 1 <sack 1001:2001, sack 3001:5001>
        > . 1:1001(1000)          # three segments above it have arrived
        < . 1:1(0) ack 1 <sack 1001:2001, sack 3001:6001>
        > . 2001:3001(1000)
        < . 1:1(0) ack 8001
        > nothing
    ",
    );
}

#[test]
fn repeated_sacks_say_nothing_new() {
    open_with_sack(
        "
        write 3000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:2001>
        > nothing
    ",
    );
}

#[test]
fn sacks_of_what_was_never_sent_are_ignored() {
    open_with_sack(
        "
        write 1000
        > . 1:1001(1000)
        < . 1:1(0) ack 1 <sack 5001:9001>
        < . 1:1(0) ack 1 <sack 5001:9002>
        < . 1:1(0) ack 1 <sack 5001:9003>
        < . 1:1(0) ack 1 <sack 5001:9004>
        > nothing
    ",
    );
}

#[test]
fn after_a_timeout_all_is_sent_again_in_slow_start() {
    open_with_sack(
        "
        write 3000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        +201
        > . 1:1001(1000)
        > nothing
        < . 1:1(0) ack 1001
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        < . 1:1(0) ack 3001
        > nothing
    ",
    );
}

#[test]
fn this_side_tells_what_it_has() {
    open_with_sack(
        "
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 3001:4001, sack 1001:2001>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:4001>
        < . 1:1001(1000) ack 1
        > . 1:1(0) ack 4001
    ",
    );
}

#[test]
fn retransmitted_segments_are_not_measured() {
    open(
        "
        +5000
        write 100
        > . 1:101(100)
        +201
        > . 1:101(100)
        +300
        < . 1:1(0) ack 101        # 501 ms after the first, 300 after the second
        write 100
        > . 101:201(100)
        +201
        > . 101:201(100)          # Karn: the timeout is still the smallest
    ",
    );
}

#[test]
fn a_slow_path_has_a_longer_timeout() {
    open(
        "
        write 100
        > . 1:101(100)
        +150
        < . 1:1(0) ack 101
        write 100
        > . 101:201(100)
        +150
        < . 1:1(0) ack 201
        write 100
        > . 201:301(100)
        +250
        > nothing                 # more than 200 ms, as the path takes 150
    ",
    );
}

#[test]
fn a_black_hole_is_passed_with_small_segments() {
    run("
        < S 0:0(0) win 60000 <mss 1400>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        write 1400
        > . 1:1401(1400)
        +201
        > . 1:1401(1400)
        +401
        > . 1:1401(1400)
        +801
        > . 1:513(512)            # a packet of 552 bytes
        < . 1:1(0) ack 513
        > . 513:1025(512)
        > . 1025:1401(376)
    ");
}
