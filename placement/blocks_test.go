package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// taken returns the numbers of the blocks of some flights.
func taken(flights []*flight) (blocks []int) {
	for _, fl := range flights {
		blocks = append(blocks, fl.block)
	}
	return blocks
}

// A block is taken once, together with the absent blocks that follow it in its range.
func TestBlockMapTakes(t *testing.T) {
	m := newBlockMap(10<<20-5, 4<<20) // 3 ranges of 4, 4 and 2 blocks
	landed := make(map[int]bool)
	for _, c := range []struct {
		b, to int
		want  []int
	}{
		{5, 6, []int{5}},
		{5, 10, nil},
		{4, 10, []int{4}}, // 5 is in flight
		{1, 10, []int{1, 2, 3}},
		{9, 10, []int{9}},
		{8, 10, []int{8}},
	} {
		fl, flights, err := m.lookup(c.b, c.to)
		if err != nil || fl.block != c.b || !slices.Equal(taken(flights), c.want) {
			t.Errorf("lookup of %d to %d: got %d, %v; want %d", c.b, c.to, taken(flights), err, c.want)
		}
		for _, fl := range flights {
			if fl.block != 5 {
				m.land(fl, nil)
				landed[fl.block] = true
			}
		}
	}
	if fl, flights, err := m.lookup(1, 10); fl != nil || flights != nil || err != nil {
		t.Errorf("lookup of a present block: got %v, %v, %v", fl, flights, err)
	}
	if got, want := m.copied(), len(landed); got != want {
		t.Errorf("blocks copied: got %d, want %d", got, want)
	}
}

// Workers take the blocks after the last request of a reader first.
func TestBlockMapTakesNext(t *testing.T) {
	m := newBlockMap(9<<20, 2<<20)
	m.follow(4)
	var got []int
	var flights []*flight
	for next := m.takeNext(); next != nil; next = m.takeNext() {
		got = append(got, taken(next)...)
		flights = append(flights, next...)
	}
	if want := []int{5, 6, 7, 8, 0, 1, 2, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("blocks taken: got %d, want %d", got, want)
	}
	for i, fl := range flights {
		if last, want := m.land(fl, nil), i == len(flights)-1; last != want || m.complete.Load() != want {
			t.Errorf("landing %d of %d: got last %v, complete %v", i+1, len(flights), last, m.complete.Load())
		}
	}
	if m.fail(errBroken) {
		t.Error("a complete map was closed by fail")
	}
}

// Of a map that was closed, no block is taken. A block whose fetch failed is absent again.
func TestBlockMapFails(t *testing.T) {
	m := newBlockMap(3<<20, 1<<20)
	first, flights := m.lookupFirst(m.len())
	if again, more := m.lookupFirst(m.len()); first == nil || again != first || len(flights) != 1 || more != nil {
		t.Errorf("first block: got %v and %v, and %v and %v", first, flights, again, more)
	}
	_, second, _ := m.lookup(1, 3)
	m.land(second[0], errBroken)
	if _, again, err := m.lookup(1, 3); len(again) != 1 || err != nil {
		t.Errorf("lookup after a failure: got %v, %v; want another flight", again, err)
	}
	if !m.fail(errBroken) || m.fail(errFailed) {
		t.Error("fail does not close the map once")
	}
	if last := m.land(first, nil); last {
		t.Error("a closed map has a last block")
	}
	if fl, _, err := m.lookup(0, 3); fl != nil || err != nil {
		t.Errorf("lookup of a present block: got %v, %v", fl, err)
	}
	if _, _, err := m.lookup(2, 3); !errors.Is(err, errBroken) {
		t.Errorf("lookup: got %v, want %v", err, errBroken)
	}
	if got := m.takeNext(); got != nil {
		t.Errorf("taken: %d, want none", taken(got))
	}
	if got := fmt.Sprint(m.failure()); got != errBroken.Error() {
		t.Errorf("failure: got %v, want %v", got, errBroken)
	}
}
