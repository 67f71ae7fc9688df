// SPDX-License-Identifier: Apache-2.0
/* low_latency.pml: a half of the slots (or, with COMBINE, of the answers) of low-latency mode, written and read again and
 * again: self-telling rows, headers with epochs, grants. README.md says how to run it and what it leaves out.
 *
 * Three PEs send and receive EPOCHS operations. Each chooses freely between its next send and its next receive, with two
 * sends open at most. Of all rows, those that OWNER gets from one writer are looked at word by word; the protocol is the
 * same for every pair of PEs, so the others are only counted: a row of PE m for epoch e is there when sent[m] >= e.
 *
 * Memory is weakly ordered: a store is put "on its way" (…_flies), and the process Wires lets it arrive at any later time
 * and in any order. What the model keeps of order is what the protocol may count on: stores of one writer to one address,
 * a release behind what it is to publish, and the end of a kernel behind its own clears. Words that others only wait for
 * (granted, sent) are set at once: a flag that comes late is the same as a reader that looks late.
 *
 * Variants:  COMBINE   answers in place of slots: no headers, and the writer of a place changes from use to use
 *            EXCHANGE  with COMBINE: weights are given at the start of a send, as packets {epoch, weight}
 *            FLAGS     groups with masks: a ready word behind each row (release / acquire) in place of self-telling words
 *            AT_ONCE   every send is received before the next one
 *            LATE      the last PE never calls the last send; the sends of the others must end all the same
 *            GRANT_AT_RECEIVE  the half is granted when a receive ends, not by the next send
 * Mutations, each of which must fail: NO_GRANT NO_CLEAR GRANT_EARLY GRANT_UNORDERED GRANT_LATE PARTIAL_TAKE
 *            FLAG_BEFORE_ROW (with FLAGS) WEIGHT_SPLIT (with EXCHANGE)
 */
#define PES 3
#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef SOURCE
#define SOURCE 0
#endif
#ifndef OWNER
#define OWNER 1
#endif
#define OTHER (3 - SOURCE - OWNER)
#define LAST (PES - 1)
#if defined(GRANT_EARLY) || defined(GRANT_UNORDERED)
#define GRANTS_ARE_WRONG  /* and the rows themselves are to show it */
#endif

/* Every word of the row of epoch e holds e. */
#define UNWRITTEN 0
#define AT(e, w) (((e) & 1) * 2 + (w))

#ifdef COMBINE
/* A place among the answers to a token belongs to whom the routing says: a half has another writer every other time. */
#define WRITER(e) (((e) / 2) % 2 -> OTHER : SOURCE)
#else
#define WRITER(e) SOURCE
#endif

/* Memory of OWNER, by half. */
byte word[4];
byte header[2];  /* epoch * 2, and 1 where a row comes */
byte ready[2];   /* FLAGS: epoch of the row */

/* On their way there; 0: nothing. */
byte word_flies[4];
byte header_flies[2];
byte ready_flies[2];
bit clear_flies[4];

/* EXCHANGE: weights of OWNER, at the writer they are for (0: SOURCE, 1: OTHER) and by half. */
#define PACKET(writer, e) (((writer) == SOURCE -> 0 : 2) + ((e) & 1))
byte stamp[4], weight[4];
byte stamp_flies[4], weight_flies[4];

/* Of each PE: the last epoch that it has sent, has received, has granted (slots_read, answers_read). */
byte sent[PES], received[PES], granted[PES];

/* Only for assertions: words that have come and were not taken, the last weights that were taken of each half. */
bit untaken[4];
byte weight_taken[2];

inline store_row(e, row) {
  d_step {
#ifndef COMBINE
    assert(header_flies[e & 1] == 0);
    header_flies[e & 1] = e * 2 + row;
#endif
    if
    :: row ->
      assert(word_flies[AT(e, 0)] == 0 && word_flies[AT(e, 1)] == 0);
      word_flies[AT(e, 0)] = e;
      word_flies[AT(e, 1)] = e;
#ifdef FLAGS
      ready_flies[e & 1] = e;
#endif
    :: else
    fi
  }
}

inline take_word(e, w) {
#ifdef FLAGS
  d_step {
    assert(word[AT(e, w)] == e);  /* not stale, not torn */
    untaken[AT(e, w)] = 0;
  }
#else
  d_step {
    word[AT(e, w)] != UNWRITTEN ->
      assert(word[AT(e, w)] == e);
      untaken[AT(e, w)] = 0;
#ifndef NO_CLEAR
      clear_flies[AT(e, w)] = 1;
#endif
  }
#endif
}

inline take_row(e) {
#ifdef FLAGS
  ready[e & 1] >= e;
#endif
  take_word(e, 0);
#ifdef PARTIAL_TAKE
  if
  :: e == 1 -> untaken[AT(e, 1)] = 0  /* not expected, so nobody misses it */
  :: else -> take_word(e, 1)
  fi
#else
  take_word(e, 1)
#endif
}

inline give_weights(e) {
  d_step {
    assert(e <= 2 || weight_taken[e & 1] == e - 2);  /* nobody still needs what is overwritten */
    stamp_flies[PACKET(SOURCE, e)] = e;
    weight_flies[PACKET(SOURCE, e)] = e;
    stamp_flies[PACKET(OTHER, e)] = e;
    weight_flies[PACKET(OTHER, e)] = e;
  }
}

inline take_weight(e) {
  stamp[PACKET(_pid, e)] == e;
  d_step {
    assert(weight[PACKET(_pid, e)] == e);
    weight_taken[e & 1] = e;
  }
}

/* Steps that others cannot see one by one are one step: waits are for words that only grow, so that nothing is lost. */
inline send() {
  atomic {
    e = s + 1;
#ifndef GRANT_AT_RECEIVE
#ifndef GRANT_LATE
    /* First of all: others may be waiting for it, and this PE is going to wait for them. */
    granted[_pid] = r;
#endif
#endif
#ifdef EXCHANGE
    if
    :: _pid == OWNER -> give_weights(e)
    :: else
    fi
#endif
  }
  atomic {
#ifndef NO_GRANT
    granted[0] + 2 >= e && granted[1] + 2 >= e && granted[2] + 2 >= e;
#ifndef GRANTS_ARE_WRONG
    /* Two results are in flight, never three. */
    assert(received[0] + 2 >= e && received[1] + 2 >= e && received[2] + 2 >= e);
#endif
#endif
#ifdef GRANT_LATE
    granted[_pid] = r;
#endif
    if
    :: _pid == WRITER(e) ->
#ifdef EXCHANGE
      take_weight(e);
#endif
#ifdef COMBINE
      store_row(e, 1)
#else
      if
      :: store_row(e, 0)  /* no expert of the token is there */
      :: store_row(e, 1)
      fi
#endif
    :: else
    fi;
    s = e;
    sent[_pid] = e;
    e = 0
  }
}

#ifdef COMBINE
/* Who answers the tokens of the others is left open: they may find all they need. */
#define ALL_HAVE_SENT(e) true
#else
/* A dispatch waits for the headers of everybody; that of SOURCE at OWNER is looked at below. */
#define HAS_SENT(m, e) (_pid == OWNER && SOURCE == m || sent[m] >= e)
#define ALL_HAVE_SENT(e) (HAS_SENT(0, e) && HAS_SENT(1, e) && HAS_SENT(2, e))
#endif

/* At OWNER. */
inline look_and_take(e) {
#ifdef COMBINE
  take_row(e);
#else
  header[e & 1] / 2 == e;
#ifdef GRANT_EARLY
  granted[_pid] = e;
#endif
  if
  :: header[e & 1] & 1 -> take_row(e)
  :: else
  fi;
#endif
#ifdef GRANT_UNORDERED
  granted[_pid] = e;
#endif
  /* The end of the kernel: its clears are done. */
  !(clear_flies[0] || clear_flies[1] || clear_flies[2] || clear_flies[3])
}

inline receive() {
  if
  :: _pid == OWNER ->
    atomic {
      e = r + 1;
      ALL_HAVE_SENT(e)
    }
    look_and_take(e)
  :: else
  fi;
  atomic {
    e = r + 1;
    ALL_HAVE_SENT(e);
    r = e;
    received[_pid] = e;
#ifdef GRANT_AT_RECEIVE
    granted[_pid] = e;
#endif
    e = 0
  }
}

#ifdef AT_ONCE
#define MAY_SEND (s == r)
#else
#define MAY_SEND (s < r + 2)
#endif
#ifdef LATE
#define TO_SEND (_pid == LAST -> EPOCHS - 1 : EPOCHS)
#define TO_RECEIVE (EPOCHS - 1)
#else
#define TO_SEND EPOCHS
#define TO_RECEIVE EPOCHS
#endif

active [PES] proctype Pe() {
  byte e, s, r;  /* s, r: as sent, received; choices that look at nothing shared make fewer states */
  do
  :: s < TO_SEND && MAY_SEND -> send()
  :: r < s && r < TO_RECEIVE -> receive()
  :: s == TO_SEND && r == TO_RECEIVE -> break
  od
}

inline arrive_word(i) {
  assert(!untaken[i]);  /* nothing is overwritten before it was read */
  word[i] = word_flies[i];
  word_flies[i] = 0;
  untaken[i] = 1
}

inline clear_word(i) {
  assert(!untaken[i]);  /* a clear hits only what was taken */
  word[i] = UNWRITTEN;
  clear_flies[i] = 0
}

inline arrive_header(i) {
  header[i] = header_flies[i];
  header_flies[i] = 0
}

#ifdef FLAG_BEFORE_ROW
#define ROW_IS_THERE(i) true
#else
#define ROW_IS_THERE(i) (word_flies[2 * (i)] == 0 && word_flies[2 * (i) + 1] == 0)
#endif

inline arrive_ready(i) {
  ready[i] = ready_flies[i];
  ready_flies[i] = 0
}

inline arrive_packet(i) {
  stamp[i] = stamp_flies[i];
  stamp_flies[i] = 0;
#ifndef WEIGHT_SPLIT
  weight[i] = weight_flies[i];
  weight_flies[i] = 0
#endif
}

inline arrive_weight(i) {
  weight[i] = weight_flies[i];
  weight_flies[i] = 0
}

active proctype Wires() {
end:
  do
  :: d_step { word_flies[0] -> arrive_word(0) }
  :: d_step { word_flies[1] -> arrive_word(1) }
  :: d_step { word_flies[2] -> arrive_word(2) }
  :: d_step { word_flies[3] -> arrive_word(3) }
#ifndef FLAGS
  :: d_step { clear_flies[0] -> clear_word(0) }
  :: d_step { clear_flies[1] -> clear_word(1) }
  :: d_step { clear_flies[2] -> clear_word(2) }
  :: d_step { clear_flies[3] -> clear_word(3) }
#else
  :: d_step { ready_flies[0] && ROW_IS_THERE(0) -> arrive_ready(0) }
  :: d_step { ready_flies[1] && ROW_IS_THERE(1) -> arrive_ready(1) }
#endif
#ifndef COMBINE
  :: d_step { header_flies[0] -> arrive_header(0) }
  :: d_step { header_flies[1] -> arrive_header(1) }
#endif
#ifdef EXCHANGE
  :: d_step { stamp_flies[0] -> arrive_packet(0) }
  :: d_step { stamp_flies[1] -> arrive_packet(1) }
  :: d_step { stamp_flies[2] -> arrive_packet(2) }
  :: d_step { stamp_flies[3] -> arrive_packet(3) }
#ifdef WEIGHT_SPLIT
  :: d_step { weight_flies[0] -> arrive_weight(0) }
  :: d_step { weight_flies[1] -> arrive_weight(1) }
  :: d_step { weight_flies[2] -> arrive_weight(2) }
  :: d_step { weight_flies[3] -> arrive_weight(3) }
#endif
#endif
  od
}
