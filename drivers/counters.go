package drivers

import (
	"fmt"
	"reflect"
	"sync/atomic"
)

// Snapshot returns a copy of live, which is a struct or an array of counters: fields of
// type int64, and structs and arrays of them. The fields are exported. The owner of live
// updates them with atomic.AddInt64 and needs no lock. Each counter of the copy is exact.
// Two counters of the copy may differ by operations that ended between the two loads.
//
// Snapshot panics if live has a field of another type.
func Snapshot[T any](live *T) T {
	var snapshot T
	load(reflect.ValueOf(live).Elem(), reflect.ValueOf(&snapshot).Elem())
	return snapshot
}

// load copies the counters of from to to.
func load(from, to reflect.Value) {
	switch from.Kind() {
	case reflect.Int64:
		to.SetInt(atomic.LoadInt64(from.Addr().Interface().(*int64)))
	case reflect.Struct:
		for i := range from.NumField() {
			load(from.Field(i), to.Field(i))
		}
	case reflect.Array:
		for i := range from.Len() {
			load(from.Index(i), to.Index(i))
		}
	default:
		panic(fmt.Sprintf("drivers.Snapshot: a counter of type %v", from.Type()))
	}
}
