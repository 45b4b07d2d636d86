package metadata

import (
	"context"
	"sync"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A todoList holds work that several goroutines share, last in, first out. Work that is in
// progress may add more.
type todoList[T any] struct {
	mu     panics.Mutex // guards the following
	wake   *sync.Cond   // signals that items or active has changed
	items  []T
	active int // number of items that are being worked on
}

func newTodoList[T any](items ...T) *todoList[T] {
	l := &todoList[T]{items: items}
	l.wake = sync.NewCond(&l.mu)
	return l
}

// push adds items.
func (l *todoList[T]) push(items ...T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, items...)
	l.wake.Broadcast()
}

// pop begins the work on an item. It reports false if none is left, or ctx is done.
func (l *todoList[T]) pop(ctx context.Context) (item T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.items) == 0 && l.active > 0 && ctx.Err() == nil {
		l.wake.Wait()
	}
	n := len(l.items)
	if n == 0 || ctx.Err() != nil {
		return item, false
	}
	item = l.items[n-1]
	l.items = l.items[:n-1]
	l.active++
	return item, true
}

// end ends the work on an item.
func (l *todoList[T]) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	l.wake.Broadcast()
}

// run calls work for each item, on a number of goroutines, until none is left or ctx is done. If
// work panics, run calls failed.
func (l *todoList[T]) run(ctx context.Context, goroutines int, work func(T), failed func(T, error)) {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wake.Broadcast()
	})()
	var workers sync.WaitGroup
	for range goroutines {
		workers.Go(func() {
			for item, ok := l.pop(ctx); ok; item, ok = l.pop(ctx) {
				if err := panics.Do(func() error { work(item); return nil }); err != nil {
					failed(item, err)
				}
				l.end()
			}
		})
	}
	workers.Wait()
}
