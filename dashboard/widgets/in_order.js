// Whether data is older than what its receiver had last (in_order.py). Another session's data is never older.
const isOld = (receiver, [session, number]) => {
  const { order = [] } = receiver;
  if (order[0] === session && number < order[1]) return true;
  receiver.order = [session, number];
  return false;
};
