package control

import "time"

// VisitTime is visitTime.
const VisitTime = visitTime

// Told is Listener.Told some time ago.
func Told(l *Listener, uid uint32, ago time.Duration) {
	l.Told(uid)
	l.guests.mu.Lock()
	defer l.guests.mu.Unlock()
	l.guests.told[uid] = l.guests.told[uid].Add(-ago)
	l.guests.pruned = l.guests.pruned.Add(-ago)
}

// Known returns how many users were told the path of the socket of l, and are remembered.
func Known(l *Listener) int {
	l.guests.mu.Lock()
	defer l.guests.mu.Unlock()
	return len(l.guests.told)
}

// Conns returns how many connections of guests l knows.
func Conns(l *Listener) int {
	l.guests.mu.Lock()
	defer l.guests.mu.Unlock()
	return len(l.guests.guests)
}

// Abandon ends l as if its process was killed.
func Abandon(l *Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
	l.socket.UnixListener.Close()
}
