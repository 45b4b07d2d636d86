package torture

import (
	"reflect"
	"testing"
)

// A cycle is a function of the seed and its number.
func TestPlanIsPure(t *testing.T) {
	for n := range 100 {
		if a, b := PlanCycle(7, n, Groups), PlanCycle(7, n, Groups); !reflect.DeepEqual(a, b) {
			t.Fatalf("%v\n%v", a, b)
		}
	}
	if reflect.DeepEqual(PlanCycle(7, 0, Groups), PlanCycle(8, 0, Groups)) {
		t.Error("two seeds have the same first cycle")
	}
}

// A cycle without a group of faults has the others, at the same times.
func TestPlanOfSomeGroups(t *testing.T) {
	for n := range 100 {
		all, some := PlanCycle(7, n, Groups), PlanCycle(7, n, []string{groupKill, groupCut, groupSource, groupClock})
		var want []Event
		for _, e := range all.Up {
			if e.Group == "" || e.Group == groupSource || e.Group == groupClock {
				want = append(want, e)
			}
		}
		if len(want)+len(some.Up) > 0 && !reflect.DeepEqual(some.Up, want) {
			t.Errorf("cycle %d: got %v, want %v", n, some.Up, want)
		}
		if all.End != some.End || all.Mode != some.Mode {
			t.Errorf("cycle %d: the rest differs", n)
		}
	}
}

// The counts that an hour has to reach are in the first 2,000 cycles, of less than 1.8 s.
func TestPlanHasEnough(t *testing.T) {
	const cycles = 2000
	counts := make(map[string]int)
	for n := range cycles {
		c := PlanCycle(1, n, Groups)
		for _, e := range append(append(c.Down, c.Up...), c.End) {
			counts[e.Group]++
		}
	}
	for group, want := range map[string]int{groupKill: 1000, groupCut: 200, groupWriteBack: 100, groupTier: 500, groupSource: 500, groupFlip: 1000, groupClock: 100} {
		if counts[group] < want {
			t.Errorf("%s: %d, want %d", group, counts[group], want)
		}
	}
}
