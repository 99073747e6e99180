from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    LOOM_ERROR: _ClassVar[ErrorCode]
    RETRYABLE: _ClassVar[ErrorCode]
    NOT_LEADER: _ClassVar[ErrorCode]
    BUSY: _ClassVar[ErrorCode]
    UNAVAILABLE: _ClassVar[ErrorCode]
    TIMEOUT: _ClassVar[ErrorCode]
    NOT_FOUND: _ClassVar[ErrorCode]
    ALREADY_EXISTS: _ClassVar[ErrorCode]
    SEALED: _ClassVar[ErrorCode]
    TRIMMED: _ClassVar[ErrorCode]
    NOT_YET_WRITTEN: _ClassVar[ErrorCode]
    DATA_LOSS: _ClassVar[ErrorCode]
    INVALID_ARGUMENT: _ClassVar[ErrorCode]
    UNAUTHORIZED: _ClassVar[ErrorCode]
    VERSION_MISMATCH: _ClassVar[ErrorCode]
    CORRUPT: _ClassVar[ErrorCode]
    APPEND_UNKNOWN: _ClassVar[ErrorCode]
    CONFLICT: _ClassVar[ErrorCode]
    FENCED: _ClassVar[ErrorCode]
    SWAP_UNKNOWN: _ClassVar[ErrorCode]
    ROLLED_BACK: _ClassVar[ErrorCode]
    DISK_FAILED: _ClassVar[ErrorCode]
    PERMISSION_DENIED: _ClassVar[ErrorCode]

class StreamState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_STATE_UNSPECIFIED: _ClassVar[StreamState]
    SEALING: _ClassVar[StreamState]
    STREAM_SEALED: _ClassVar[StreamState]
    RUNNING: _ClassVar[StreamState]
ERROR_CODE_UNSPECIFIED: ErrorCode
LOOM_ERROR: ErrorCode
RETRYABLE: ErrorCode
NOT_LEADER: ErrorCode
BUSY: ErrorCode
UNAVAILABLE: ErrorCode
TIMEOUT: ErrorCode
NOT_FOUND: ErrorCode
ALREADY_EXISTS: ErrorCode
SEALED: ErrorCode
TRIMMED: ErrorCode
NOT_YET_WRITTEN: ErrorCode
DATA_LOSS: ErrorCode
INVALID_ARGUMENT: ErrorCode
UNAUTHORIZED: ErrorCode
VERSION_MISMATCH: ErrorCode
CORRUPT: ErrorCode
APPEND_UNKNOWN: ErrorCode
CONFLICT: ErrorCode
FENCED: ErrorCode
SWAP_UNKNOWN: ErrorCode
ROLLED_BACK: ErrorCode
DISK_FAILED: ErrorCode
PERMISSION_DENIED: ErrorCode
STREAM_STATE_UNSPECIFIED: StreamState
SEALING: StreamState
STREAM_SEALED: StreamState
RUNNING: StreamState

class Frame(_message.Message):
    __slots__ = ("id", "reply", "leader_epoch", "trace", "error", "hello", "done", "ping", "register", "registered", "report", "node_stops", "check_replica", "hold_log", "commit", "add_log_stream", "seal", "seal_response", "unseal", "trim_log_stream", "remove_log_stream", "synchronise", "synchronise_response", "scrub", "scrub_response", "prove_node", "node_proof", "note_run", "list_holdings", "holdings", "check_server", "server_check", "list_stored", "stored_list", "drain_volumes", "give_up_volume", "measure_stream", "measure_copyset", "measured", "relocate_log_stream", "list_commits", "commit_list", "open_replication", "replicate", "replication_refused", "replication_paused", "sync_start", "sync_started", "sync_batches", "fetch_batches", "fetched_batches", "append", "appended", "read", "read_response", "subscribe", "subscription_data", "subscription_credit", "cancel_subscription", "resolve_append", "append_resolved", "locate", "located", "find_time", "found_time", "create_log", "describe_log", "log", "list_logs", "log_list", "delete_log", "trim_log", "get_bounds", "bounds", "get_status", "status", "change_stream", "change_node", "changed", "change_metadata", "switch_log", "set_retention", "find_expired", "expired", "enlist_log", "get_register", "register_value", "swap_register", "list_registers", "register_list", "change_lease", "lease", "list_leases", "lease_list", "check_nodes", "nodes_outage", "describe_stream", "stream_description", "plan_rebalance", "rebalance_plan", "round_seal", "round_sealed", "round_read", "round_tail", "round_install", "round_append", "round_stored", "ask_leader", "leader_beat", "chain_request", "chain_answer", "sequencer_request", "sequencer_answer", "report_chain", "decide_position", "report_forgotten", "copyset_request", "copyset_answer", "copyset_append", "find_copyset_tail", "copyset_tail", "epoch_store_request", "copyset_state", "recover_copyset", "find_copyset_landmarks", "copyset_landmarks", "copyset_rebuild", "copyset_restored", "fill_copyset", "copyset_filled", "check_copyset", "copyset_checked", "describe_loglet", "loglet_name", "access", "get_access", "change_access", "create_token", "token", "list_events", "event_list", "protocol_message")
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    NODE_STOPS_FIELD_NUMBER: _ClassVar[int]
    CHECK_REPLICA_FIELD_NUMBER: _ClassVar[int]
    HOLD_LOG_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ADD_LOG_STREAM_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    SEAL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    UNSEAL_FIELD_NUMBER: _ClassVar[int]
    TRIM_LOG_STREAM_FIELD_NUMBER: _ClassVar[int]
    REMOVE_LOG_STREAM_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONISE_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONISE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    SCRUB_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    PROVE_NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_PROOF_FIELD_NUMBER: _ClassVar[int]
    NOTE_RUN_FIELD_NUMBER: _ClassVar[int]
    LIST_HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    CHECK_SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVER_CHECK_FIELD_NUMBER: _ClassVar[int]
    LIST_STORED_FIELD_NUMBER: _ClassVar[int]
    STORED_LIST_FIELD_NUMBER: _ClassVar[int]
    DRAIN_VOLUMES_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_VOLUME_FIELD_NUMBER: _ClassVar[int]
    MEASURE_STREAM_FIELD_NUMBER: _ClassVar[int]
    MEASURE_COPYSET_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    RELOCATE_LOG_STREAM_FIELD_NUMBER: _ClassVar[int]
    LIST_COMMITS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LIST_FIELD_NUMBER: _ClassVar[int]
    OPEN_REPLICATION_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_REFUSED_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_PAUSED_FIELD_NUMBER: _ClassVar[int]
    SYNC_START_FIELD_NUMBER: _ClassVar[int]
    SYNC_STARTED_FIELD_NUMBER: _ClassVar[int]
    SYNC_BATCHES_FIELD_NUMBER: _ClassVar[int]
    FETCH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    READ_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_DATA_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_CREDIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RESOLVE_APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_RESOLVED_FIELD_NUMBER: _ClassVar[int]
    LOCATE_FIELD_NUMBER: _ClassVar[int]
    LOCATED_FIELD_NUMBER: _ClassVar[int]
    FIND_TIME_FIELD_NUMBER: _ClassVar[int]
    FOUND_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATE_LOG_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LIST_LOGS_FIELD_NUMBER: _ClassVar[int]
    LOG_LIST_FIELD_NUMBER: _ClassVar[int]
    DELETE_LOG_FIELD_NUMBER: _ClassVar[int]
    TRIM_LOG_FIELD_NUMBER: _ClassVar[int]
    GET_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_STREAM_FIELD_NUMBER: _ClassVar[int]
    CHANGE_NODE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_METADATA_FIELD_NUMBER: _ClassVar[int]
    SWITCH_LOG_FIELD_NUMBER: _ClassVar[int]
    SET_RETENTION_FIELD_NUMBER: _ClassVar[int]
    FIND_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ENLIST_LOG_FIELD_NUMBER: _ClassVar[int]
    GET_REGISTER_FIELD_NUMBER: _ClassVar[int]
    REGISTER_VALUE_FIELD_NUMBER: _ClassVar[int]
    SWAP_REGISTER_FIELD_NUMBER: _ClassVar[int]
    LIST_REGISTERS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_LIST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LIST_LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_LIST_FIELD_NUMBER: _ClassVar[int]
    CHECK_NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_OUTAGE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PLAN_REBALANCE_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_SEAL_FIELD_NUMBER: _ClassVar[int]
    ROUND_SEALED_FIELD_NUMBER: _ClassVar[int]
    ROUND_READ_FIELD_NUMBER: _ClassVar[int]
    ROUND_TAIL_FIELD_NUMBER: _ClassVar[int]
    ROUND_INSTALL_FIELD_NUMBER: _ClassVar[int]
    ROUND_APPEND_FIELD_NUMBER: _ClassVar[int]
    ROUND_STORED_FIELD_NUMBER: _ClassVar[int]
    ASK_LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_BEAT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCER_ANSWER_FIELD_NUMBER: _ClassVar[int]
    REPORT_CHAIN_FIELD_NUMBER: _ClassVar[int]
    DECIDE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    COPYSET_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COPYSET_ANSWER_FIELD_NUMBER: _ClassVar[int]
    COPYSET_APPEND_FIELD_NUMBER: _ClassVar[int]
    FIND_COPYSET_TAIL_FIELD_NUMBER: _ClassVar[int]
    COPYSET_TAIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_STORE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COPYSET_STATE_FIELD_NUMBER: _ClassVar[int]
    RECOVER_COPYSET_FIELD_NUMBER: _ClassVar[int]
    FIND_COPYSET_LANDMARKS_FIELD_NUMBER: _ClassVar[int]
    COPYSET_LANDMARKS_FIELD_NUMBER: _ClassVar[int]
    COPYSET_REBUILD_FIELD_NUMBER: _ClassVar[int]
    COPYSET_RESTORED_FIELD_NUMBER: _ClassVar[int]
    FILL_COPYSET_FIELD_NUMBER: _ClassVar[int]
    COPYSET_FILLED_FIELD_NUMBER: _ClassVar[int]
    CHECK_COPYSET_FIELD_NUMBER: _ClassVar[int]
    COPYSET_CHECKED_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_LOGLET_FIELD_NUMBER: _ClassVar[int]
    LOGLET_NAME_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    GET_ACCESS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ACCESS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIST_EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENT_LIST_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: int
    reply: bool
    leader_epoch: int
    trace: str
    error: Error
    hello: Hello
    done: Done
    ping: Ping
    register: Register
    registered: Registered
    report: GetReportResponse
    node_stops: NodeStops
    check_replica: CheckReplica
    hold_log: HoldLog
    commit: CommitRequest
    add_log_stream: AddLogStream
    seal: Seal
    seal_response: SealResponse
    unseal: Unseal
    trim_log_stream: TrimLogStream
    remove_log_stream: RemoveLogStream
    synchronise: Synchronise
    synchronise_response: SynchroniseResponse
    scrub: Scrub
    scrub_response: ScrubResponse
    prove_node: ProveNode
    node_proof: NodeProof
    note_run: NoteRun
    list_holdings: ListHoldings
    holdings: Holdings
    check_server: CheckServer
    server_check: ServerCheck
    list_stored: ListStored
    stored_list: StoredList
    drain_volumes: DrainVolumes
    give_up_volume: GiveUpVolume
    measure_stream: MeasureStream
    measure_copyset: MeasureCopyset
    measured: Measured
    relocate_log_stream: RelocateLogStream
    list_commits: ListCommits
    commit_list: CommitList
    open_replication: OpenReplication
    replicate: Replicate
    replication_refused: ReplicationRefused
    replication_paused: ReplicationPaused
    sync_start: SyncStart
    sync_started: SyncStarted
    sync_batches: SyncBatches
    fetch_batches: FetchBatches
    fetched_batches: FetchedBatches
    append: Append
    appended: Appended
    read: Read
    read_response: ReadResponse
    subscribe: Subscribe
    subscription_data: SubscriptionData
    subscription_credit: SubscriptionCredit
    cancel_subscription: CancelSubscription
    resolve_append: ResolveAppend
    append_resolved: AppendResolved
    locate: Locate
    located: Located
    find_time: FindTime
    found_time: FoundTime
    create_log: CreateLog
    describe_log: DescribeLog
    log: Log
    list_logs: ListLogs
    log_list: LogList
    delete_log: DeleteLog
    trim_log: TrimLog
    get_bounds: GetBounds
    bounds: Bounds
    get_status: GetStatus
    status: Status
    change_stream: ChangeStream
    change_node: ChangeNode
    changed: Changed
    change_metadata: ChangeMetadata
    switch_log: SwitchLog
    set_retention: SetRetention
    find_expired: FindExpired
    expired: Expired
    enlist_log: EnlistLog
    get_register: GetRegister
    register_value: RegisterValue
    swap_register: SwapRegister
    list_registers: ListRegisters
    register_list: RegisterList
    change_lease: ChangeLease
    lease: Lease
    list_leases: ListLeases
    lease_list: LeaseList
    check_nodes: CheckNodes
    nodes_outage: NodesOutage
    describe_stream: DescribeStream
    stream_description: StreamDescription
    plan_rebalance: PlanRebalance
    rebalance_plan: RebalancePlan
    round_seal: RoundSeal
    round_sealed: RoundSealed
    round_read: RoundRead
    round_tail: RoundTail
    round_install: RoundInstall
    round_append: RoundAppend
    round_stored: RoundStored
    ask_leader: AskLeader
    leader_beat: LeaderBeat
    chain_request: ChainRequest
    chain_answer: ChainAnswer
    sequencer_request: SequencerRequest
    sequencer_answer: SequencerAnswer
    report_chain: ReportChain
    decide_position: DecidePosition
    report_forgotten: ReportForgotten
    copyset_request: CopysetRequest
    copyset_answer: CopysetAnswer
    copyset_append: CopysetAppend
    find_copyset_tail: FindCopysetTail
    copyset_tail: CopysetTail
    epoch_store_request: EpochStoreRequest
    copyset_state: CopysetState
    recover_copyset: RecoverCopyset
    find_copyset_landmarks: FindCopysetLandmarks
    copyset_landmarks: CopysetLandmarks
    copyset_rebuild: CopysetRebuild
    copyset_restored: CopysetRestored
    fill_copyset: FillCopyset
    copyset_filled: CopysetFilled
    check_copyset: CheckCopyset
    copyset_checked: CopysetChecked
    describe_loglet: DescribeLoglet
    loglet_name: LogletName
    access: Access
    get_access: GetAccess
    change_access: ChangeAccess
    create_token: CreateToken
    token: Token
    list_events: ListEvents
    event_list: EventList
    protocol_message: ProtocolMessage
    def __init__(self, id: _Optional[int] = ..., reply: _Optional[bool] = ..., leader_epoch: _Optional[int] = ..., trace: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., report: _Optional[_Union[GetReportResponse, _Mapping]] = ..., node_stops: _Optional[_Union[NodeStops, _Mapping]] = ..., check_replica: _Optional[_Union[CheckReplica, _Mapping]] = ..., hold_log: _Optional[_Union[HoldLog, _Mapping]] = ..., commit: _Optional[_Union[CommitRequest, _Mapping]] = ..., add_log_stream: _Optional[_Union[AddLogStream, _Mapping]] = ..., seal: _Optional[_Union[Seal, _Mapping]] = ..., seal_response: _Optional[_Union[SealResponse, _Mapping]] = ..., unseal: _Optional[_Union[Unseal, _Mapping]] = ..., trim_log_stream: _Optional[_Union[TrimLogStream, _Mapping]] = ..., remove_log_stream: _Optional[_Union[RemoveLogStream, _Mapping]] = ..., synchronise: _Optional[_Union[Synchronise, _Mapping]] = ..., synchronise_response: _Optional[_Union[SynchroniseResponse, _Mapping]] = ..., scrub: _Optional[_Union[Scrub, _Mapping]] = ..., scrub_response: _Optional[_Union[ScrubResponse, _Mapping]] = ..., prove_node: _Optional[_Union[ProveNode, _Mapping]] = ..., node_proof: _Optional[_Union[NodeProof, _Mapping]] = ..., note_run: _Optional[_Union[NoteRun, _Mapping]] = ..., list_holdings: _Optional[_Union[ListHoldings, _Mapping]] = ..., holdings: _Optional[_Union[Holdings, _Mapping]] = ..., check_server: _Optional[_Union[CheckServer, _Mapping]] = ..., server_check: _Optional[_Union[ServerCheck, _Mapping]] = ..., list_stored: _Optional[_Union[ListStored, _Mapping]] = ..., stored_list: _Optional[_Union[StoredList, _Mapping]] = ..., drain_volumes: _Optional[_Union[DrainVolumes, _Mapping]] = ..., give_up_volume: _Optional[_Union[GiveUpVolume, _Mapping]] = ..., measure_stream: _Optional[_Union[MeasureStream, _Mapping]] = ..., measure_copyset: _Optional[_Union[MeasureCopyset, _Mapping]] = ..., measured: _Optional[_Union[Measured, _Mapping]] = ..., relocate_log_stream: _Optional[_Union[RelocateLogStream, _Mapping]] = ..., list_commits: _Optional[_Union[ListCommits, _Mapping]] = ..., commit_list: _Optional[_Union[CommitList, _Mapping]] = ..., open_replication: _Optional[_Union[OpenReplication, _Mapping]] = ..., replicate: _Optional[_Union[Replicate, _Mapping]] = ..., replication_refused: _Optional[_Union[ReplicationRefused, _Mapping]] = ..., replication_paused: _Optional[_Union[ReplicationPaused, _Mapping]] = ..., sync_start: _Optional[_Union[SyncStart, _Mapping]] = ..., sync_started: _Optional[_Union[SyncStarted, _Mapping]] = ..., sync_batches: _Optional[_Union[SyncBatches, _Mapping]] = ..., fetch_batches: _Optional[_Union[FetchBatches, _Mapping]] = ..., fetched_batches: _Optional[_Union[FetchedBatches, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., appended: _Optional[_Union[Appended, _Mapping]] = ..., read: _Optional[_Union[Read, _Mapping]] = ..., read_response: _Optional[_Union[ReadResponse, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., subscription_data: _Optional[_Union[SubscriptionData, _Mapping]] = ..., subscription_credit: _Optional[_Union[SubscriptionCredit, _Mapping]] = ..., cancel_subscription: _Optional[_Union[CancelSubscription, _Mapping]] = ..., resolve_append: _Optional[_Union[ResolveAppend, _Mapping]] = ..., append_resolved: _Optional[_Union[AppendResolved, _Mapping]] = ..., locate: _Optional[_Union[Locate, _Mapping]] = ..., located: _Optional[_Union[Located, _Mapping]] = ..., find_time: _Optional[_Union[FindTime, _Mapping]] = ..., found_time: _Optional[_Union[FoundTime, _Mapping]] = ..., create_log: _Optional[_Union[CreateLog, _Mapping]] = ..., describe_log: _Optional[_Union[DescribeLog, _Mapping]] = ..., log: _Optional[_Union[Log, _Mapping]] = ..., list_logs: _Optional[_Union[ListLogs, _Mapping]] = ..., log_list: _Optional[_Union[LogList, _Mapping]] = ..., delete_log: _Optional[_Union[DeleteLog, _Mapping]] = ..., trim_log: _Optional[_Union[TrimLog, _Mapping]] = ..., get_bounds: _Optional[_Union[GetBounds, _Mapping]] = ..., bounds: _Optional[_Union[Bounds, _Mapping]] = ..., get_status: _Optional[_Union[GetStatus, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., change_stream: _Optional[_Union[ChangeStream, _Mapping]] = ..., change_node: _Optional[_Union[ChangeNode, _Mapping]] = ..., changed: _Optional[_Union[Changed, _Mapping]] = ..., change_metadata: _Optional[_Union[ChangeMetadata, _Mapping]] = ..., switch_log: _Optional[_Union[SwitchLog, _Mapping]] = ..., set_retention: _Optional[_Union[SetRetention, _Mapping]] = ..., find_expired: _Optional[_Union[FindExpired, _Mapping]] = ..., expired: _Optional[_Union[Expired, _Mapping]] = ..., enlist_log: _Optional[_Union[EnlistLog, _Mapping]] = ..., get_register: _Optional[_Union[GetRegister, _Mapping]] = ..., register_value: _Optional[_Union[RegisterValue, _Mapping]] = ..., swap_register: _Optional[_Union[SwapRegister, _Mapping]] = ..., list_registers: _Optional[_Union[ListRegisters, _Mapping]] = ..., register_list: _Optional[_Union[RegisterList, _Mapping]] = ..., change_lease: _Optional[_Union[ChangeLease, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., list_leases: _Optional[_Union[ListLeases, _Mapping]] = ..., lease_list: _Optional[_Union[LeaseList, _Mapping]] = ..., check_nodes: _Optional[_Union[CheckNodes, _Mapping]] = ..., nodes_outage: _Optional[_Union[NodesOutage, _Mapping]] = ..., describe_stream: _Optional[_Union[DescribeStream, _Mapping]] = ..., stream_description: _Optional[_Union[StreamDescription, _Mapping]] = ..., plan_rebalance: _Optional[_Union[PlanRebalance, _Mapping]] = ..., rebalance_plan: _Optional[_Union[RebalancePlan, _Mapping]] = ..., round_seal: _Optional[_Union[RoundSeal, _Mapping]] = ..., round_sealed: _Optional[_Union[RoundSealed, _Mapping]] = ..., round_read: _Optional[_Union[RoundRead, _Mapping]] = ..., round_tail: _Optional[_Union[RoundTail, _Mapping]] = ..., round_install: _Optional[_Union[RoundInstall, _Mapping]] = ..., round_append: _Optional[_Union[RoundAppend, _Mapping]] = ..., round_stored: _Optional[_Union[RoundStored, _Mapping]] = ..., ask_leader: _Optional[_Union[AskLeader, _Mapping]] = ..., leader_beat: _Optional[_Union[LeaderBeat, _Mapping]] = ..., chain_request: _Optional[_Union[ChainRequest, _Mapping]] = ..., chain_answer: _Optional[_Union[ChainAnswer, _Mapping]] = ..., sequencer_request: _Optional[_Union[SequencerRequest, _Mapping]] = ..., sequencer_answer: _Optional[_Union[SequencerAnswer, _Mapping]] = ..., report_chain: _Optional[_Union[ReportChain, _Mapping]] = ..., decide_position: _Optional[_Union[DecidePosition, _Mapping]] = ..., report_forgotten: _Optional[_Union[ReportForgotten, _Mapping]] = ..., copyset_request: _Optional[_Union[CopysetRequest, _Mapping]] = ..., copyset_answer: _Optional[_Union[CopysetAnswer, _Mapping]] = ..., copyset_append: _Optional[_Union[CopysetAppend, _Mapping]] = ..., find_copyset_tail: _Optional[_Union[FindCopysetTail, _Mapping]] = ..., copyset_tail: _Optional[_Union[CopysetTail, _Mapping]] = ..., epoch_store_request: _Optional[_Union[EpochStoreRequest, _Mapping]] = ..., copyset_state: _Optional[_Union[CopysetState, _Mapping]] = ..., recover_copyset: _Optional[_Union[RecoverCopyset, _Mapping]] = ..., find_copyset_landmarks: _Optional[_Union[FindCopysetLandmarks, _Mapping]] = ..., copyset_landmarks: _Optional[_Union[CopysetLandmarks, _Mapping]] = ..., copyset_rebuild: _Optional[_Union[CopysetRebuild, _Mapping]] = ..., copyset_restored: _Optional[_Union[CopysetRestored, _Mapping]] = ..., fill_copyset: _Optional[_Union[FillCopyset, _Mapping]] = ..., copyset_filled: _Optional[_Union[CopysetFilled, _Mapping]] = ..., check_copyset: _Optional[_Union[CheckCopyset, _Mapping]] = ..., copyset_checked: _Optional[_Union[CopysetChecked, _Mapping]] = ..., describe_loglet: _Optional[_Union[DescribeLoglet, _Mapping]] = ..., loglet_name: _Optional[_Union[LogletName, _Mapping]] = ..., access: _Optional[_Union[Access, _Mapping]] = ..., get_access: _Optional[_Union[GetAccess, _Mapping]] = ..., change_access: _Optional[_Union[ChangeAccess, _Mapping]] = ..., create_token: _Optional[_Union[CreateToken, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., list_events: _Optional[_Union[ListEvents, _Mapping]] = ..., event_list: _Optional[_Union[EventList, _Mapping]] = ..., protocol_message: _Optional[_Union[ProtocolMessage, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "role", "software", "cluster_id", "token", "oldest_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    role: str
    software: str
    cluster_id: str
    token: str
    oldest_version: int
    def __init__(self, protocol_version: _Optional[int] = ..., role: _Optional[str] = ..., software: _Optional[str] = ..., cluster_id: _Optional[str] = ..., token: _Optional[str] = ..., oldest_version: _Optional[int] = ...) -> None: ...

class CheckServer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerCheck(_message.Message):
    __slots__ = ("software", "cluster_id", "storage_node_id", "clock_us", "open_files_max", "volumes", "store", "store_read_s", "store_error", "certificate_ends_s")
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_US_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_MAX_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_READ_S_FIELD_NUMBER: _ClassVar[int]
    STORE_ERROR_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_S_FIELD_NUMBER: _ClassVar[int]
    software: str
    cluster_id: str
    storage_node_id: int
    clock_us: int
    open_files_max: int
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeCheck]
    store: str
    store_read_s: float
    store_error: str
    certificate_ends_s: int
    def __init__(self, software: _Optional[str] = ..., cluster_id: _Optional[str] = ..., storage_node_id: _Optional[int] = ..., clock_us: _Optional[int] = ..., open_files_max: _Optional[int] = ..., volumes: _Optional[_Iterable[_Union[VolumeCheck, _Mapping]]] = ..., store: _Optional[str] = ..., store_read_s: _Optional[float] = ..., store_error: _Optional[str] = ..., certificate_ends_s: _Optional[int] = ...) -> None: ...

class VolumeCheck(_message.Message):
    __slots__ = ("path", "free_bytes", "total_bytes", "sync_s", "error")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYNC_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    path: str
    free_bytes: int
    total_bytes: int
    sync_s: float
    error: str
    def __init__(self, path: _Optional[str] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., sync_s: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "leader", "first", "last", "lasting")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LASTING_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    leader: str
    first: int
    last: int
    lasting: bool
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., leader: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., lasting: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProtocolMessage(_message.Message):
    __slots__ = ("protocol", "body")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    body: bytes
    def __init__(self, protocol: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Replica(_message.Message):
    __slots__ = ("storage_node_id", "address")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    address: str
    def __init__(self, storage_node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("storage_node_id", "cluster_id", "address", "cluster_secret", "node_secret", "sync_mode", "volumes", "shards", "uncommit_reports", "chain_replicas", "location", "lost_shards", "closings", "given_up", "salvaged_chains", "conditions", "highest_log_id", "highest_stream_id", "known_run", "generations", "process", "clean", "reads_packed")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_SECRET_FIELD_NUMBER: _ClassVar[int]
    NODE_SECRET_FIELD_NUMBER: _ClassVar[int]
    SYNC_MODE_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    UNCOMMIT_REPORTS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    LOST_SHARDS_FIELD_NUMBER: _ClassVar[int]
    CLOSINGS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    SALVAGED_CHAINS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_LOG_ID_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    READS_PACKED_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    cluster_id: str
    address: str
    cluster_secret: str
    node_secret: str
    sync_mode: str
    volumes: _containers.RepeatedScalarFieldContainer[str]
    shards: _containers.RepeatedScalarFieldContainer[int]
    uncommit_reports: _containers.RepeatedCompositeFieldContainer[LogStreamUncommitReport]
    chain_replicas: _containers.RepeatedCompositeFieldContainer[ChainReplicaRef]
    location: str
    lost_shards: _containers.RepeatedScalarFieldContainer[int]
    closings: _containers.RepeatedCompositeFieldContainer[ShardClosing]
    given_up: _containers.RepeatedScalarFieldContainer[int]
    salvaged_chains: _containers.RepeatedScalarFieldContainer[int]
    conditions: NodeConditions
    highest_log_id: int
    highest_stream_id: int
    known_run: NoteRun
    generations: _containers.RepeatedScalarFieldContainer[int]
    process: str
    clean: bool
    reads_packed: bool
    def __init__(self, storage_node_id: _Optional[int] = ..., cluster_id: _Optional[str] = ..., address: _Optional[str] = ..., cluster_secret: _Optional[str] = ..., node_secret: _Optional[str] = ..., sync_mode: _Optional[str] = ..., volumes: _Optional[_Iterable[str]] = ..., shards: _Optional[_Iterable[int]] = ..., uncommit_reports: _Optional[_Iterable[_Union[LogStreamUncommitReport, _Mapping]]] = ..., chain_replicas: _Optional[_Iterable[_Union[ChainReplicaRef, _Mapping]]] = ..., location: _Optional[str] = ..., lost_shards: _Optional[_Iterable[int]] = ..., closings: _Optional[_Iterable[_Union[ShardClosing, _Mapping]]] = ..., given_up: _Optional[_Iterable[int]] = ..., salvaged_chains: _Optional[_Iterable[int]] = ..., conditions: _Optional[_Union[NodeConditions, _Mapping]] = ..., highest_log_id: _Optional[int] = ..., highest_stream_id: _Optional[int] = ..., known_run: _Optional[_Union[NoteRun, _Mapping]] = ..., generations: _Optional[_Iterable[int]] = ..., process: _Optional[str] = ..., clean: _Optional[bool] = ..., reads_packed: _Optional[bool] = ...) -> None: ...

class ShardClosing(_message.Message):
    __slots__ = ("shard", "number")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    number: int
    def __init__(self, shard: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class NodeStops(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HoldLog(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "expected_tail")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAIL_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    expected_tail: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., expected_tail: _Optional[int] = ...) -> None: ...

class CheckReplica(_message.Message):
    __slots__ = ("log_stream_id", "storage_node_id")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    storage_node_id: int
    def __init__(self, log_stream_id: _Optional[int] = ..., storage_node_id: _Optional[int] = ...) -> None: ...

class NoteRun(_message.Message):
    __slots__ = ("number", "id", "revision")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    number: int
    id: str
    revision: int
    def __init__(self, number: _Optional[int] = ..., id: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ProveNode(_message.Message):
    __slots__ = ("challenge",)
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    def __init__(self, challenge: _Optional[bytes] = ...) -> None: ...

class NodeProof(_message.Message):
    __slots__ = ("proof", "process")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    process: str
    def __init__(self, proof: _Optional[bytes] = ..., process: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("kind", "severity", "text", "help", "storage_node_id", "volume", "log", "log_stream_id", "records", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    severity: str
    text: str
    help: str
    storage_node_id: int
    volume: str
    log: str
    log_stream_id: int
    records: int
    bytes: int
    def __init__(self, kind: _Optional[str] = ..., severity: _Optional[str] = ..., text: _Optional[str] = ..., help: _Optional[str] = ..., storage_node_id: _Optional[int] = ..., volume: _Optional[str] = ..., log: _Optional[str] = ..., log_stream_id: _Optional[int] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class NodeConditions(_message.Message):
    __slots__ = ("conditions", "takes_nothing", "unserved", "chains_unserved", "volume_missing", "full_streams", "full_loglets", "shards")
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    TAKES_NOTHING_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    CHAINS_UNSERVED_FIELD_NUMBER: _ClassVar[int]
    VOLUME_MISSING_FIELD_NUMBER: _ClassVar[int]
    FULL_STREAMS_FIELD_NUMBER: _ClassVar[int]
    FULL_LOGLETS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    takes_nothing: bool
    unserved: _containers.RepeatedScalarFieldContainer[int]
    chains_unserved: bool
    volume_missing: bool
    full_streams: _containers.RepeatedCompositeFieldContainer[FullStream]
    full_loglets: _containers.RepeatedScalarFieldContainer[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardCondition]
    def __init__(self, conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., takes_nothing: _Optional[bool] = ..., unserved: _Optional[_Iterable[int]] = ..., chains_unserved: _Optional[bool] = ..., volume_missing: _Optional[bool] = ..., full_streams: _Optional[_Iterable[_Union[FullStream, _Mapping]]] = ..., full_loglets: _Optional[_Iterable[int]] = ..., shards: _Optional[_Iterable[_Union[ShardCondition, _Mapping]]] = ...) -> None: ...

class ShardCondition(_message.Message):
    __slots__ = ("shard", "stores_no_copies", "refuses_copies", "copies_fail")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STORES_NO_COPIES_FIELD_NUMBER: _ClassVar[int]
    REFUSES_COPIES_FIELD_NUMBER: _ClassVar[int]
    COPIES_FAIL_FIELD_NUMBER: _ClassVar[int]
    shard: int
    stores_no_copies: bool
    refuses_copies: bool
    copies_fail: bool
    def __init__(self, shard: _Optional[int] = ..., stores_no_copies: _Optional[bool] = ..., refuses_copies: _Optional[bool] = ..., copies_fail: _Optional[bool] = ...) -> None: ...

class ChainReplicaRef(_message.Message):
    __slots__ = ("loglet_id", "chain", "birth", "epoch", "written", "shard", "trimmed")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    chain: int
    birth: int
    epoch: int
    written: int
    shard: int
    trimmed: int
    def __init__(self, loglet_id: _Optional[int] = ..., chain: _Optional[int] = ..., birth: _Optional[int] = ..., epoch: _Optional[int] = ..., written: _Optional[int] = ..., shard: _Optional[int] = ..., trimmed: _Optional[int] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("cluster_id", "cluster_secret", "heartbeat_s", "metadata", "held_back", "lost", "generation", "void", "rebuild", "draining_volumes", "access", "life", "reads_packed", "proves_tickets", "forgetful")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_SECRET_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_VOLUMES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    READS_PACKED_FIELD_NUMBER: _ClassVar[int]
    PROVES_TICKETS_FIELD_NUMBER: _ClassVar[int]
    FORGETFUL_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster_secret: str
    heartbeat_s: float
    metadata: _containers.RepeatedScalarFieldContainer[str]
    held_back: str
    lost: _containers.RepeatedCompositeFieldContainer[LostCopies]
    generation: int
    void: _containers.RepeatedCompositeFieldContainer[ChainReplicaRef]
    rebuild: CopysetRebuild
    draining_volumes: _containers.RepeatedScalarFieldContainer[str]
    access: Access
    life: int
    reads_packed: bool
    proves_tickets: bool
    forgetful: _containers.RepeatedCompositeFieldContainer[ChainReplicaRef]
    def __init__(self, cluster_id: _Optional[str] = ..., cluster_secret: _Optional[str] = ..., heartbeat_s: _Optional[float] = ..., metadata: _Optional[_Iterable[str]] = ..., held_back: _Optional[str] = ..., lost: _Optional[_Iterable[_Union[LostCopies, _Mapping]]] = ..., generation: _Optional[int] = ..., void: _Optional[_Iterable[_Union[ChainReplicaRef, _Mapping]]] = ..., rebuild: _Optional[_Union[CopysetRebuild, _Mapping]] = ..., draining_volumes: _Optional[_Iterable[str]] = ..., access: _Optional[_Union[Access, _Mapping]] = ..., life: _Optional[int] = ..., reads_packed: _Optional[bool] = ..., proves_tickets: _Optional[bool] = ..., forgetful: _Optional[_Iterable[_Union[ChainReplicaRef, _Mapping]]] = ...) -> None: ...

class LostCopies(_message.Message):
    __slots__ = ("loglet_id", "epoch", "shard")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    shard: int
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class LogStreamUncommitReport(_message.Message):
    __slots__ = ("log_stream_id", "uncommitted_llsn_offset", "uncommitted_llsn_length", "high_watermark", "seal_epoch", "state", "stored_high_watermark", "resend", "stored_bytes", "damaged", "stamp", "birth", "precondition_llsn", "precondition_length", "expected_tail")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_LLSN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_LLSN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STORED_HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    PRECONDITION_LLSN_FIELD_NUMBER: _ClassVar[int]
    PRECONDITION_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAIL_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    uncommitted_llsn_offset: int
    uncommitted_llsn_length: int
    high_watermark: int
    seal_epoch: int
    state: StreamState
    stored_high_watermark: int
    resend: bool
    stored_bytes: int
    damaged: bool
    stamp: int
    birth: int
    precondition_llsn: int
    precondition_length: int
    expected_tail: int
    def __init__(self, log_stream_id: _Optional[int] = ..., uncommitted_llsn_offset: _Optional[int] = ..., uncommitted_llsn_length: _Optional[int] = ..., high_watermark: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., state: _Optional[_Union[StreamState, str]] = ..., stored_high_watermark: _Optional[int] = ..., resend: _Optional[bool] = ..., stored_bytes: _Optional[int] = ..., damaged: _Optional[bool] = ..., stamp: _Optional[int] = ..., birth: _Optional[int] = ..., precondition_llsn: _Optional[int] = ..., precondition_length: _Optional[int] = ..., expected_tail: _Optional[int] = ...) -> None: ...

class ScrubStatus(_message.Message):
    __slots__ = ("passes", "last_pass_s", "bytes", "damaged", "repaired", "unrepaired")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    LAST_PASS_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    UNREPAIRED_FIELD_NUMBER: _ClassVar[int]
    passes: int
    last_pass_s: float
    bytes: int
    damaged: int
    repaired: int
    unrepaired: int
    def __init__(self, passes: _Optional[int] = ..., last_pass_s: _Optional[float] = ..., bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., repaired: _Optional[int] = ..., unrepaired: _Optional[int] = ...) -> None: ...

class FullStream(_message.Message):
    __slots__ = ("log_stream_id", "reason")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    reason: str
    def __init__(self, log_stream_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class VolumeSpace(_message.Message):
    __slots__ = ("path", "used", "limit", "free", "total", "full", "failed", "shard")
    PATH_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    path: str
    used: int
    limit: int
    free: int
    total: int
    full: bool
    failed: bool
    shard: int
    def __init__(self, path: _Optional[str] = ..., used: _Optional[int] = ..., limit: _Optional[int] = ..., free: _Optional[int] = ..., total: _Optional[int] = ..., full: _Optional[bool] = ..., failed: _Optional[bool] = ..., shard: _Optional[int] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("storage_node_id", "uncommit_reports", "packed_reports", "loglet_bytes", "tails", "conditions", "clock_us", "volumes", "scrub", "sizes", "generations", "denials", "refusals", "audit_dropped", "rebuild")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UNCOMMIT_REPORTS_FIELD_NUMBER: _ClassVar[int]
    PACKED_REPORTS_FIELD_NUMBER: _ClassVar[int]
    LOGLET_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAILS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_US_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    DENIALS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_DROPPED_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    uncommit_reports: _containers.RepeatedCompositeFieldContainer[LogStreamUncommitReport]
    packed_reports: bytes
    loglet_bytes: int
    tails: _containers.RepeatedCompositeFieldContainer[LogletTail]
    conditions: NodeConditions
    clock_us: int
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeSpace]
    scrub: ScrubStatus
    sizes: _containers.RepeatedCompositeFieldContainer[LogletSize]
    generations: _containers.RepeatedScalarFieldContainer[int]
    denials: int
    refusals: LimitRefusals
    audit_dropped: int
    rebuild: _containers.RepeatedCompositeFieldContainer[DonorReport]
    def __init__(self, storage_node_id: _Optional[int] = ..., uncommit_reports: _Optional[_Iterable[_Union[LogStreamUncommitReport, _Mapping]]] = ..., packed_reports: _Optional[bytes] = ..., loglet_bytes: _Optional[int] = ..., tails: _Optional[_Iterable[_Union[LogletTail, _Mapping]]] = ..., conditions: _Optional[_Union[NodeConditions, _Mapping]] = ..., clock_us: _Optional[int] = ..., volumes: _Optional[_Iterable[_Union[VolumeSpace, _Mapping]]] = ..., scrub: _Optional[_Union[ScrubStatus, _Mapping]] = ..., sizes: _Optional[_Iterable[_Union[LogletSize, _Mapping]]] = ..., generations: _Optional[_Iterable[int]] = ..., denials: _Optional[int] = ..., refusals: _Optional[_Union[LimitRefusals, _Mapping]] = ..., audit_dropped: _Optional[int] = ..., rebuild: _Optional[_Iterable[_Union[DonorReport, _Mapping]]] = ...) -> None: ...

class LimitRefusals(_message.Message):
    __slots__ = ("connections", "requests", "bytes", "subscriptions")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    connections: int
    requests: int
    bytes: int
    subscriptions: int
    def __init__(self, connections: _Optional[int] = ..., requests: _Optional[int] = ..., bytes: _Optional[int] = ..., subscriptions: _Optional[int] = ...) -> None: ...

class LogletSize(_message.Message):
    __slots__ = ("loglet_id", "part", "stored_bytes")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    part: int
    stored_bytes: int
    def __init__(self, loglet_id: _Optional[int] = ..., part: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class LogletTail(_message.Message):
    __slots__ = ("loglet_id", "tail")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    tail: int
    def __init__(self, loglet_id: _Optional[int] = ..., tail: _Optional[int] = ...) -> None: ...

class LogStreamCommitResult(_message.Message):
    __slots__ = ("log_stream_id", "committed_glsn_offset", "committed_glsn_length", "high_watermark", "prev_high_watermark", "committed_llsn_offset", "seal_epoch")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_GLSN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_GLSN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    PREV_HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LLSN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    committed_glsn_offset: int
    committed_glsn_length: int
    high_watermark: int
    prev_high_watermark: int
    committed_llsn_offset: int
    seal_epoch: int
    def __init__(self, log_stream_id: _Optional[int] = ..., committed_glsn_offset: _Optional[int] = ..., committed_glsn_length: _Optional[int] = ..., high_watermark: _Optional[int] = ..., prev_high_watermark: _Optional[int] = ..., committed_llsn_offset: _Optional[int] = ..., seal_epoch: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("storage_node_id", "commit_results", "packed_commits")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_RESULTS_FIELD_NUMBER: _ClassVar[int]
    PACKED_COMMITS_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    commit_results: _containers.RepeatedCompositeFieldContainer[LogStreamCommitResult]
    packed_commits: bytes
    def __init__(self, storage_node_id: _Optional[int] = ..., commit_results: _Optional[_Iterable[_Union[LogStreamCommitResult, _Mapping]]] = ..., packed_commits: _Optional[bytes] = ...) -> None: ...

class AddLogStream(_message.Message):
    __slots__ = ("log_id", "log_stream_id", "replicas", "stamp", "birth")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    log_stream_id: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    stamp: int
    birth: int
    def __init__(self, log_id: _Optional[int] = ..., log_stream_id: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., stamp: _Optional[int] = ..., birth: _Optional[int] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "last_committed_llsn", "stamp")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITTED_LLSN_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    last_committed_llsn: int
    stamp: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., last_committed_llsn: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("state", "last_committed_llsn", "high_watermark")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITTED_LLSN_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    state: StreamState
    last_committed_llsn: int
    high_watermark: int
    def __init__(self, state: _Optional[_Union[StreamState, str]] = ..., last_committed_llsn: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class Unseal(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "replicas")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class TrimLogStream(_message.Message):
    __slots__ = ("log_stream_id", "glsn", "stamp")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    GLSN_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    glsn: int
    stamp: int
    def __init__(self, log_stream_id: _Optional[int] = ..., glsn: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class RemoveLogStream(_message.Message):
    __slots__ = ("log_stream_id", "stamp", "birth")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    stamp: int
    birth: int
    def __init__(self, log_stream_id: _Optional[int] = ..., stamp: _Optional[int] = ..., birth: _Optional[int] = ...) -> None: ...

class Synchronise(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "destination", "bytes_per_s")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    destination: Replica
    bytes_per_s: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., destination: _Optional[_Union[Replica, _Mapping]] = ..., bytes_per_s: _Optional[int] = ...) -> None: ...

class SynchroniseResponse(_message.Message):
    __slots__ = ("finished", "copied_llsn", "last_llsn", "copied_bytes", "error")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    COPIED_LLSN_FIELD_NUMBER: _ClassVar[int]
    LAST_LLSN_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    copied_llsn: int
    last_llsn: int
    copied_bytes: int
    error: str
    def __init__(self, finished: _Optional[bool] = ..., copied_llsn: _Optional[int] = ..., last_llsn: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Scrub(_message.Message):
    __slots__ = ("log_stream_ids", "replicas", "start", "loglet_ids")
    LOG_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LOGLET_IDS_FIELD_NUMBER: _ClassVar[int]
    log_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    start: bool
    loglet_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, log_stream_ids: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., start: _Optional[bool] = ..., loglet_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ScrubResponse(_message.Message):
    __slots__ = ("finished", "stored_bytes", "checked_bytes", "corrupt_batches", "repaired_batches", "error", "missing_copies")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MISSING_COPIES_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    stored_bytes: int
    checked_bytes: int
    corrupt_batches: int
    repaired_batches: int
    error: str
    missing_copies: int
    def __init__(self, finished: _Optional[bool] = ..., stored_bytes: _Optional[int] = ..., checked_bytes: _Optional[int] = ..., corrupt_batches: _Optional[int] = ..., repaired_batches: _Optional[int] = ..., error: _Optional[str] = ..., missing_copies: _Optional[int] = ...) -> None: ...

class ListHoldings(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Holdings(_message.Message):
    __slots__ = ("streams", "chain_replicas", "copysets")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    COPYSETS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamHolding]
    chain_replicas: _containers.RepeatedCompositeFieldContainer[ChainReplicaRef]
    copysets: _containers.RepeatedCompositeFieldContainer[CopysetHolding]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamHolding, _Mapping]]] = ..., chain_replicas: _Optional[_Iterable[_Union[ChainReplicaRef, _Mapping]]] = ..., copysets: _Optional[_Iterable[_Union[CopysetHolding, _Mapping]]] = ...) -> None: ...

class ListStored(_message.Message):
    __slots__ = ("log_stream_id", "loglet_id")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    loglet_id: int
    def __init__(self, log_stream_id: _Optional[int] = ..., loglet_id: _Optional[int] = ...) -> None: ...

class DrainVolumes(_message.Message):
    __slots__ = ("volumes",)
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, volumes: _Optional[_Iterable[str]] = ...) -> None: ...

class GiveUpVolume(_message.Message):
    __slots__ = ("volume",)
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    volume: str
    def __init__(self, volume: _Optional[str] = ...) -> None: ...

class RelocateLogStream(_message.Message):
    __slots__ = ("log_stream_id", "stamp")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    stamp: int
    def __init__(self, log_stream_id: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class StoredList(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[StoredReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[StoredReplica, _Mapping]]] = ...) -> None: ...

class StoredReplica(_message.Message):
    __slots__ = ("log_stream_id", "loglet_id", "part", "path", "volume", "stored_bytes", "free_bytes", "total_bytes", "birth")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    loglet_id: int
    part: int
    path: str
    volume: str
    stored_bytes: int
    free_bytes: int
    total_bytes: int
    birth: int
    def __init__(self, log_stream_id: _Optional[int] = ..., loglet_id: _Optional[int] = ..., part: _Optional[int] = ..., path: _Optional[str] = ..., volume: _Optional[str] = ..., stored_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., birth: _Optional[int] = ...) -> None: ...

class StreamHolding(_message.Message):
    __slots__ = ("log_stream_id", "log_id", "trimmed")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    log_id: int
    trimmed: int
    def __init__(self, log_stream_id: _Optional[int] = ..., log_id: _Optional[int] = ..., trimmed: _Optional[int] = ...) -> None: ...

class CopysetHolding(_message.Message):
    __slots__ = ("loglet_id", "epoch", "trimmed")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    trimmed: int
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., trimmed: _Optional[int] = ...) -> None: ...

class ListCommits(_message.Message):
    __slots__ = ("log_stream_id", "after")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    after: int
    def __init__(self, log_stream_id: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class CommitList(_message.Message):
    __slots__ = ("report", "ran_epoch", "commits", "more")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    RAN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    report: LogStreamUncommitReport
    ran_epoch: int
    commits: _containers.RepeatedCompositeFieldContainer[LogStreamCommitResult]
    more: bool
    def __init__(self, report: _Optional[_Union[LogStreamUncommitReport, _Mapping]] = ..., ran_epoch: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[LogStreamCommitResult, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class SyncStart(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "first_llsn", "first_glsn", "last_llsn", "trimmed_glsn", "prev_high_watermark", "stamp")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_LLSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_GLSN_FIELD_NUMBER: _ClassVar[int]
    LAST_LLSN_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_GLSN_FIELD_NUMBER: _ClassVar[int]
    PREV_HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    first_llsn: int
    first_glsn: int
    last_llsn: int
    trimmed_glsn: int
    prev_high_watermark: int
    stamp: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., first_llsn: _Optional[int] = ..., first_glsn: _Optional[int] = ..., last_llsn: _Optional[int] = ..., trimmed_glsn: _Optional[int] = ..., prev_high_watermark: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class SyncStarted(_message.Message):
    __slots__ = ("next_llsn",)
    NEXT_LLSN_FIELD_NUMBER: _ClassVar[int]
    next_llsn: int
    def __init__(self, next_llsn: _Optional[int] = ...) -> None: ...

class SyncBatches(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "commits")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    commits: _containers.RepeatedCompositeFieldContainer[LogStreamCommitResult]
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[LogStreamCommitResult, _Mapping]]] = ...) -> None: ...

class FetchBatches(_message.Message):
    __slots__ = ("log_stream_id", "first_llsn", "last_llsn")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_LLSN_FIELD_NUMBER: _ClassVar[int]
    LAST_LLSN_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    first_llsn: int
    last_llsn: int
    def __init__(self, log_stream_id: _Optional[int] = ..., first_llsn: _Optional[int] = ..., last_llsn: _Optional[int] = ...) -> None: ...

class FetchedBatches(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenReplication(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "next_llsn")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_LLSN_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    next_llsn: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., next_llsn: _Optional[int] = ...) -> None: ...

class Replicate(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ...) -> None: ...

class ReplicationRefused(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "reason")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    reason: str
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReplicationPaused(_message.Message):
    __slots__ = ("log_stream_id", "reason")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    reason: str
    def __init__(self, log_stream_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "expected_tail")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAIL_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    expected_tail: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., expected_tail: _Optional[int] = ...) -> None: ...

class Appended(_message.Message):
    __slots__ = ("first_glsn", "first_llsn")
    FIRST_GLSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_LLSN_FIELD_NUMBER: _ClassVar[int]
    first_glsn: int
    first_llsn: int
    def __init__(self, first_glsn: _Optional[int] = ..., first_llsn: _Optional[int] = ...) -> None: ...

class ResolveAppend(_message.Message):
    __slots__ = ("log_stream_id", "seal_epoch", "producer_id", "sequence")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    seal_epoch: int
    producer_id: int
    sequence: int
    def __init__(self, log_stream_id: _Optional[int] = ..., seal_epoch: _Optional[int] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class AppendResolved(_message.Message):
    __slots__ = ("appended", "first_glsn", "first_llsn")
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    FIRST_GLSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_LLSN_FIELD_NUMBER: _ClassVar[int]
    appended: bool
    first_glsn: int
    first_llsn: int
    def __init__(self, appended: _Optional[bool] = ..., first_glsn: _Optional[int] = ..., first_llsn: _Optional[int] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("log_stream_id", "glsn")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    GLSN_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    glsn: int
    def __init__(self, log_stream_id: _Optional[int] = ..., glsn: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("high_watermark",)
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    high_watermark: int
    def __init__(self, high_watermark: _Optional[int] = ...) -> None: ...

class Locate(_message.Message):
    __slots__ = ("log_stream_id", "glsn")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    GLSN_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    glsn: int
    def __init__(self, log_stream_id: _Optional[int] = ..., glsn: _Optional[int] = ...) -> None: ...

class Located(_message.Message):
    __slots__ = ("llsn", "high_watermark")
    LLSN_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    llsn: int
    high_watermark: int
    def __init__(self, llsn: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class FindTime(_message.Message):
    __slots__ = ("log_stream_id", "timestamp_us", "first_glsn")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_GLSN_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    timestamp_us: int
    first_glsn: int
    def __init__(self, log_stream_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., first_glsn: _Optional[int] = ...) -> None: ...

class FoundTime(_message.Message):
    __slots__ = ("position", "high_watermark")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    position: int
    high_watermark: int
    def __init__(self, position: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("log_stream_id", "first_glsn", "first_llsn", "credit_bytes")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_GLSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_LLSN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    first_glsn: int
    first_llsn: int
    credit_bytes: int
    def __init__(self, log_stream_id: _Optional[int] = ..., first_glsn: _Optional[int] = ..., first_llsn: _Optional[int] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class SubscriptionData(_message.Message):
    __slots__ = ("high_watermark", "sealed")
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    high_watermark: int
    sealed: bool
    def __init__(self, high_watermark: _Optional[int] = ..., sealed: _Optional[bool] = ...) -> None: ...

class SubscriptionCredit(_message.Message):
    __slots__ = ("subscription_id", "bytes")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    bytes: int
    def __init__(self, subscription_id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CancelSubscription(_message.Message):
    __slots__ = ("subscription_id",)
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    def __init__(self, subscription_id: _Optional[int] = ...) -> None: ...

class CreateLog(_message.Message):
    __slots__ = ("name", "protocol", "streams", "replicas", "retention_s", "nodeset", "min_replicas", "first_position", "retention_bytes", "compression")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    NODESET_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    protocol: str
    streams: int
    replicas: int
    retention_s: int
    nodeset: int
    min_replicas: int
    first_position: int
    retention_bytes: int
    compression: str
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[str] = ..., streams: _Optional[int] = ..., replicas: _Optional[int] = ..., retention_s: _Optional[int] = ..., nodeset: _Optional[int] = ..., min_replicas: _Optional[int] = ..., first_position: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., compression: _Optional[str] = ...) -> None: ...

class DescribeLog(_message.Message):
    __slots__ = ("name", "verb")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    name: str
    verb: str
    def __init__(self, name: _Optional[str] = ..., verb: _Optional[str] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("log_id", "name", "protocol", "replicas", "head", "tail", "streams", "version", "metadata", "segments", "switching", "retention_s", "tail_unknown", "groups", "retention_bytes", "queues")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SWITCHING_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    TAIL_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    name: str
    protocol: str
    replicas: int
    head: int
    tail: int
    streams: _containers.RepeatedCompositeFieldContainer[LogStream]
    version: int
    metadata: _containers.RepeatedScalarFieldContainer[str]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    switching: str
    retention_s: int
    tail_unknown: bool
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    retention_bytes: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    def __init__(self, log_id: _Optional[int] = ..., name: _Optional[str] = ..., protocol: _Optional[str] = ..., replicas: _Optional[int] = ..., head: _Optional[int] = ..., tail: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[LogStream, _Mapping]]] = ..., version: _Optional[int] = ..., metadata: _Optional[_Iterable[str]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., switching: _Optional[str] = ..., retention_s: _Optional[int] = ..., tail_unknown: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., retention_bytes: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("name", "members", "positions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    members: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., members: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("name", "members", "position", "taken", "free")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    name: str
    members: int
    position: int
    taken: int
    free: int
    def __init__(self, name: _Optional[str] = ..., members: _Optional[int] = ..., position: _Optional[int] = ..., taken: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("loglet_id", "protocol", "streams", "replicas", "start", "end", "nodeset", "min_replicas", "compression")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NODESET_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    protocol: str
    streams: int
    replicas: int
    start: int
    end: int
    nodeset: int
    min_replicas: int
    compression: str
    def __init__(self, loglet_id: _Optional[int] = ..., protocol: _Optional[str] = ..., streams: _Optional[int] = ..., replicas: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., nodeset: _Optional[int] = ..., min_replicas: _Optional[int] = ..., compression: _Optional[str] = ...) -> None: ...

class LogStream(_message.Message):
    __slots__ = ("log_stream_id", "state", "seal_epoch", "replicas", "entries", "condition", "joining_node", "copied_entries", "loglet_id", "protocol", "projection", "copyset", "held", "last", "lost_from", "lost_after", "rolled_back", "removing")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    JOINING_NODE_FIELD_NUMBER: _ClassVar[int]
    COPIED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    COPYSET_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    LOST_AFTER_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    state: StreamState
    seal_epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    entries: int
    condition: str
    joining_node: int
    copied_entries: int
    loglet_id: int
    protocol: str
    projection: Projection
    copyset: CopysetState
    held: bool
    last: int
    lost_from: int
    lost_after: int
    rolled_back: bool
    removing: bool
    def __init__(self, log_stream_id: _Optional[int] = ..., state: _Optional[_Union[StreamState, str]] = ..., seal_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., entries: _Optional[int] = ..., condition: _Optional[str] = ..., joining_node: _Optional[int] = ..., copied_entries: _Optional[int] = ..., loglet_id: _Optional[int] = ..., protocol: _Optional[str] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., copyset: _Optional[_Union[CopysetState, _Mapping]] = ..., held: _Optional[bool] = ..., last: _Optional[int] = ..., lost_from: _Optional[int] = ..., lost_after: _Optional[int] = ..., rolled_back: _Optional[bool] = ..., removing: _Optional[bool] = ...) -> None: ...

class ListLogs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogList(_message.Message):
    __slots__ = ("logs",)
    LOGS_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[Log]
    def __init__(self, logs: _Optional[_Iterable[_Union[Log, _Mapping]]] = ...) -> None: ...

class DeleteLog(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TrimLog(_message.Message):
    __slots__ = ("name", "position")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: int
    def __init__(self, name: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class SwitchLog(_message.Message):
    __slots__ = ("name", "protocol", "streams", "replicas", "nodeset", "min_replicas", "compression")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NODESET_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    protocol: str
    streams: int
    replicas: int
    nodeset: int
    min_replicas: int
    compression: str
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[str] = ..., streams: _Optional[int] = ..., replicas: _Optional[int] = ..., nodeset: _Optional[int] = ..., min_replicas: _Optional[int] = ..., compression: _Optional[str] = ...) -> None: ...

class FindExpired(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Expired(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class EnlistLog(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetRetention(_message.Message):
    __slots__ = ("name", "retention_s", "retention_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention_s: int
    retention_bytes: int
    def __init__(self, name: _Optional[str] = ..., retention_s: _Optional[int] = ..., retention_bytes: _Optional[int] = ...) -> None: ...

class GetBounds(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Bounds(_message.Message):
    __slots__ = ("head", "tail")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    head: int
    tail: int
    def __init__(self, head: _Optional[int] = ..., tail: _Optional[int] = ...) -> None: ...

class ChangeStream(_message.Message):
    __slots__ = ("action", "log_stream_id", "log", "from_node", "to_node", "tell_only", "part", "nodes")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[ChangeStream.Action]
        SEAL: _ClassVar[ChangeStream.Action]
        UNSEAL: _ClassVar[ChangeStream.Action]
        ADD: _ClassVar[ChangeStream.Action]
        MOVE: _ClassVar[ChangeStream.Action]
        UNREGISTER: _ClassVar[ChangeStream.Action]
        SCRUB: _ClassVar[ChangeStream.Action]
        ADD_REPLICA: _ClassVar[ChangeStream.Action]
        REMOVE: _ClassVar[ChangeStream.Action]
        PRIMARY: _ClassVar[ChangeStream.Action]
        RENEW: _ClassVar[ChangeStream.Action]
        SYNC: _ClassVar[ChangeStream.Action]
    ACTION_UNSPECIFIED: ChangeStream.Action
    SEAL: ChangeStream.Action
    UNSEAL: ChangeStream.Action
    ADD: ChangeStream.Action
    MOVE: ChangeStream.Action
    UNREGISTER: ChangeStream.Action
    SCRUB: ChangeStream.Action
    ADD_REPLICA: ChangeStream.Action
    REMOVE: ChangeStream.Action
    PRIMARY: ChangeStream.Action
    RENEW: ChangeStream.Action
    SYNC: ChangeStream.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    TELL_ONLY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    action: ChangeStream.Action
    log_stream_id: int
    log: str
    from_node: int
    to_node: int
    tell_only: bool
    part: int
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, action: _Optional[_Union[ChangeStream.Action, str]] = ..., log_stream_id: _Optional[int] = ..., log: _Optional[str] = ..., from_node: _Optional[int] = ..., to_node: _Optional[int] = ..., tell_only: _Optional[bool] = ..., part: _Optional[int] = ..., nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class PlanRebalance(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebalancePlan(_message.Message):
    __slots__ = ("moves", "renewals", "loads", "imbalance_before", "imbalance_after")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    IMBALANCE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    IMBALANCE_AFTER_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[PlannedMove]
    renewals: _containers.RepeatedCompositeFieldContainer[PlannedRenewal]
    loads: _containers.RepeatedCompositeFieldContainer[PlannedLoad]
    imbalance_before: float
    imbalance_after: float
    def __init__(self, moves: _Optional[_Iterable[_Union[PlannedMove, _Mapping]]] = ..., renewals: _Optional[_Iterable[_Union[PlannedRenewal, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[PlannedLoad, _Mapping]]] = ..., imbalance_before: _Optional[float] = ..., imbalance_after: _Optional[float] = ...) -> None: ...

class PlannedMove(_message.Message):
    __slots__ = ("log", "log_stream_id", "part", "from_node", "to_node", "stored_bytes")
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    log: str
    log_stream_id: int
    part: int
    from_node: int
    to_node: int
    stored_bytes: int
    def __init__(self, log: _Optional[str] = ..., log_stream_id: _Optional[int] = ..., part: _Optional[int] = ..., from_node: _Optional[int] = ..., to_node: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class PlannedRenewal(_message.Message):
    __slots__ = ("log", "log_stream_id", "nodes_before", "nodes_after")
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    NODES_AFTER_FIELD_NUMBER: _ClassVar[int]
    log: str
    log_stream_id: int
    nodes_before: _containers.RepeatedScalarFieldContainer[int]
    nodes_after: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, log: _Optional[str] = ..., log_stream_id: _Optional[int] = ..., nodes_before: _Optional[_Iterable[int]] = ..., nodes_after: _Optional[_Iterable[int]] = ...) -> None: ...

class PlannedLoad(_message.Message):
    __slots__ = ("storage_node_id", "replicas_before", "replicas_after", "bytes_before", "bytes_after")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_AFTER_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    replicas_before: int
    replicas_after: int
    bytes_before: int
    bytes_after: int
    def __init__(self, storage_node_id: _Optional[int] = ..., replicas_before: _Optional[int] = ..., replicas_after: _Optional[int] = ..., bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ...) -> None: ...

class DescribeStream(_message.Message):
    __slots__ = ("log_stream_id",)
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    def __init__(self, log_stream_id: _Optional[int] = ...) -> None: ...

class StreamDescription(_message.Message):
    __slots__ = ("log", "stream", "replicas")
    LOG_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    log: str
    stream: LogStream
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaDescription]
    def __init__(self, log: _Optional[str] = ..., stream: _Optional[_Union[LogStream, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaDescription, _Mapping]]] = ...) -> None: ...

class ReplicaDescription(_message.Message):
    __slots__ = ("storage_node_id", "alive", "role", "state", "epoch", "written", "committed", "high_watermark", "lag", "stored", "part")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    alive: bool
    role: str
    state: str
    epoch: int
    written: int
    committed: int
    high_watermark: int
    lag: int
    stored: StoredReplica
    part: int
    def __init__(self, storage_node_id: _Optional[int] = ..., alive: _Optional[bool] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., written: _Optional[int] = ..., committed: _Optional[int] = ..., high_watermark: _Optional[int] = ..., lag: _Optional[int] = ..., stored: _Optional[_Union[StoredReplica, _Mapping]] = ..., part: _Optional[int] = ...) -> None: ...

class ChangeNode(_message.Message):
    __slots__ = ("action", "storage_node_id", "force", "for_s", "volume")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[ChangeNode.Action]
        DRAIN: _ClassVar[ChangeNode.Action]
        UNDRAIN: _ClassVar[ChangeNode.Action]
        REMOVE: _ClassVar[ChangeNode.Action]
        CLEANUP: _ClassVar[ChangeNode.Action]
        REPLACE: _ClassVar[ChangeNode.Action]
        MARK_UNRECOVERABLE: _ClassVar[ChangeNode.Action]
        RESTART: _ClassVar[ChangeNode.Action]
    ACTION_UNSPECIFIED: ChangeNode.Action
    DRAIN: ChangeNode.Action
    UNDRAIN: ChangeNode.Action
    REMOVE: ChangeNode.Action
    CLEANUP: ChangeNode.Action
    REPLACE: ChangeNode.Action
    MARK_UNRECOVERABLE: ChangeNode.Action
    RESTART: ChangeNode.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    action: ChangeNode.Action
    storage_node_id: int
    force: bool
    for_s: float
    volume: str
    def __init__(self, action: _Optional[_Union[ChangeNode.Action, str]] = ..., storage_node_id: _Optional[int] = ..., force: _Optional[bool] = ..., for_s: _Optional[float] = ..., volume: _Optional[str] = ...) -> None: ...

class CheckNodes(_message.Message):
    __slots__ = ("nodes", "location")
    NODES_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    location: str
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., location: _Optional[str] = ...) -> None: ...

class NodesOutage(_message.Message):
    __slots__ = ("nodes", "away", "logs", "affected")
    NODES_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    AFFECTED_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    away: _containers.RepeatedScalarFieldContainer[int]
    logs: int
    affected: _containers.RepeatedCompositeFieldContainer[LogOutage]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., away: _Optional[_Iterable[int]] = ..., logs: _Optional[int] = ..., affected: _Optional[_Iterable[_Union[LogOutage, _Mapping]]] = ...) -> None: ...

class LogOutage(_message.Message):
    __slots__ = ("name", "copies", "copies_left", "appends_stop", "reads_stop")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    COPIES_LEFT_FIELD_NUMBER: _ClassVar[int]
    APPENDS_STOP_FIELD_NUMBER: _ClassVar[int]
    READS_STOP_FIELD_NUMBER: _ClassVar[int]
    name: str
    copies: int
    copies_left: int
    appends_stop: str
    reads_stop: str
    def __init__(self, name: _Optional[str] = ..., copies: _Optional[int] = ..., copies_left: _Optional[int] = ..., appends_stop: _Optional[str] = ..., reads_stop: _Optional[str] = ...) -> None: ...

class ChangeMetadata(_message.Message):
    __slots__ = ("action", "member_id", "address")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[ChangeMetadata.Action]
        ADD: _ClassVar[ChangeMetadata.Action]
        REMOVE: _ClassVar[ChangeMetadata.Action]
    ACTION_UNSPECIFIED: ChangeMetadata.Action
    ADD: ChangeMetadata.Action
    REMOVE: ChangeMetadata.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    action: ChangeMetadata.Action
    member_id: int
    address: str
    def __init__(self, action: _Optional[_Union[ChangeMetadata.Action, str]] = ..., member_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Changed(_message.Message):
    __slots__ = ("done", "next", "replicas_left", "log_stream_id", "scrubs", "finished")
    DONE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SCRUBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    done: str
    next: str
    replicas_left: int
    log_stream_id: int
    scrubs: _containers.RepeatedCompositeFieldContainer[ReplicaScrub]
    finished: bool
    def __init__(self, done: _Optional[str] = ..., next: _Optional[str] = ..., replicas_left: _Optional[int] = ..., log_stream_id: _Optional[int] = ..., scrubs: _Optional[_Iterable[_Union[ReplicaScrub, _Mapping]]] = ..., finished: _Optional[bool] = ...) -> None: ...

class ReplicaScrub(_message.Message):
    __slots__ = ("storage_node_id", "progress")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    progress: ScrubResponse
    def __init__(self, storage_node_id: _Optional[int] = ..., progress: _Optional[_Union[ScrubResponse, _Mapping]] = ...) -> None: ...

class ListEvents(_message.Message):
    __slots__ = ("after", "since_s")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    after: int
    since_s: float
    def __init__(self, after: _Optional[int] = ..., since_s: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "time_s", "severity", "subject", "text", "log")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    id: int
    time_s: float
    severity: str
    subject: str
    text: str
    log: str
    def __init__(self, id: _Optional[int] = ..., time_s: _Optional[float] = ..., severity: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class EventList(_message.Message):
    __slots__ = ("events", "last", "more")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    last: int
    more: bool
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., last: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("cluster_id", "metadata_address", "nodes", "logs", "rounds", "uptime_s", "leader_epoch", "leader", "members", "rebuilds", "conditions", "denials", "refusals", "audit_dropped")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REBUILDS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    DENIALS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_DROPPED_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    metadata_address: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    logs: _containers.RepeatedCompositeFieldContainer[Log]
    rounds: int
    uptime_s: float
    leader_epoch: int
    leader: int
    members: _containers.RepeatedCompositeFieldContainer[MetadataMember]
    rebuilds: _containers.RepeatedCompositeFieldContainer[RebuildStatus]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    denials: int
    refusals: LimitRefusals
    audit_dropped: int
    def __init__(self, cluster_id: _Optional[str] = ..., metadata_address: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[Log, _Mapping]]] = ..., rounds: _Optional[int] = ..., uptime_s: _Optional[float] = ..., leader_epoch: _Optional[int] = ..., leader: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MetadataMember, _Mapping]]] = ..., rebuilds: _Optional[_Iterable[_Union[RebuildStatus, _Mapping]]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., denials: _Optional[int] = ..., refusals: _Optional[_Union[LimitRefusals, _Mapping]] = ..., audit_dropped: _Optional[int] = ...) -> None: ...

class RebuildStatus(_message.Message):
    __slots__ = ("shard", "status", "records", "size_bytes", "part_done", "left_s", "waiting", "storage_node_id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_DONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    shard: str
    status: str
    records: int
    size_bytes: int
    part_done: float
    left_s: float
    waiting: str
    storage_node_id: int
    def __init__(self, shard: _Optional[str] = ..., status: _Optional[str] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ..., part_done: _Optional[float] = ..., left_s: _Optional[float] = ..., waiting: _Optional[str] = ..., storage_node_id: _Optional[int] = ...) -> None: ...

class MetadataMember(_message.Message):
    __slots__ = ("member_id", "address", "reachable", "lag", "leaving", "connected_s")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_S_FIELD_NUMBER: _ClassVar[int]
    member_id: int
    address: str
    reachable: bool
    lag: int
    leaving: bool
    connected_s: float
    def __init__(self, member_id: _Optional[int] = ..., address: _Optional[str] = ..., reachable: _Optional[bool] = ..., lag: _Optional[int] = ..., leaving: _Optional[bool] = ..., connected_s: _Optional[float] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("storage_node_id", "address", "alive", "last_report_s", "sync_mode", "replicas", "stored_bytes", "draining", "unknown_streams", "location", "held_back", "process", "restarting", "volumes", "scrub", "denials", "refusals", "audit_dropped")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LAST_REPORT_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_MODE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RESTARTING_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    DENIALS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_DROPPED_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    address: str
    alive: bool
    last_report_s: float
    sync_mode: str
    replicas: int
    stored_bytes: int
    draining: bool
    unknown_streams: _containers.RepeatedScalarFieldContainer[int]
    location: str
    held_back: str
    process: str
    restarting: bool
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeSpace]
    scrub: ScrubStatus
    denials: int
    refusals: LimitRefusals
    audit_dropped: int
    def __init__(self, storage_node_id: _Optional[int] = ..., address: _Optional[str] = ..., alive: _Optional[bool] = ..., last_report_s: _Optional[float] = ..., sync_mode: _Optional[str] = ..., replicas: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., draining: _Optional[bool] = ..., unknown_streams: _Optional[_Iterable[int]] = ..., location: _Optional[str] = ..., held_back: _Optional[str] = ..., process: _Optional[str] = ..., restarting: _Optional[bool] = ..., volumes: _Optional[_Iterable[_Union[VolumeSpace, _Mapping]]] = ..., scrub: _Optional[_Union[ScrubStatus, _Mapping]] = ..., denials: _Optional[int] = ..., refusals: _Optional[_Union[LimitRefusals, _Mapping]] = ..., audit_dropped: _Optional[int] = ...) -> None: ...

class GetRegister(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RegisterValue(_message.Message):
    __slots__ = ("name", "version", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    value: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class SwapRegister(_message.Message):
    __slots__ = ("name", "expected", "value", "delete", "lease", "lease_epoch", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    expected: int
    value: bytes
    delete: bool
    lease: str
    lease_epoch: int
    token: int
    def __init__(self, name: _Optional[str] = ..., expected: _Optional[int] = ..., value: _Optional[bytes] = ..., delete: _Optional[bool] = ..., lease: _Optional[str] = ..., lease_epoch: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class ListRegisters(_message.Message):
    __slots__ = ("prefix", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class RegisterList(_message.Message):
    __slots__ = ("registers", "more")
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    registers: _containers.RepeatedCompositeFieldContainer[RegisterValue]
    more: bool
    def __init__(self, registers: _Optional[_Iterable[_Union[RegisterValue, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ChangeLease(_message.Message):
    __slots__ = ("action", "name", "holder", "ttl_s", "epoch")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[ChangeLease.Action]
        ACQUIRE: _ClassVar[ChangeLease.Action]
        RENEW: _ClassVar[ChangeLease.Action]
        RELEASE: _ClassVar[ChangeLease.Action]
    ACTION_UNSPECIFIED: ChangeLease.Action
    ACQUIRE: ChangeLease.Action
    RENEW: ChangeLease.Action
    RELEASE: ChangeLease.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    action: ChangeLease.Action
    name: str
    holder: str
    ttl_s: float
    epoch: int
    def __init__(self, action: _Optional[_Union[ChangeLease.Action, str]] = ..., name: _Optional[str] = ..., holder: _Optional[str] = ..., ttl_s: _Optional[float] = ..., epoch: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("name", "holder", "epoch", "ttl_s", "left_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    epoch: int
    ttl_s: float
    left_s: float
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ..., epoch: _Optional[int] = ..., ttl_s: _Optional[float] = ..., left_s: _Optional[float] = ...) -> None: ...

class ListLeases(_message.Message):
    __slots__ = ("prefix", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class LeaseList(_message.Message):
    __slots__ = ("leases", "more")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    more: bool
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class RoundSeal(_message.Message):
    __slots__ = ("epoch", "leader", "address", "member")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    leader: int
    address: str
    member: int
    def __init__(self, epoch: _Optional[int] = ..., leader: _Optional[int] = ..., address: _Optional[str] = ..., member: _Optional[int] = ...) -> None: ...

class RoundSealed(_message.Message):
    __slots__ = ("file_epoch", "last_index", "lost", "record_format")
    FILE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RECORD_FORMAT_FIELD_NUMBER: _ClassVar[int]
    file_epoch: int
    last_index: int
    lost: bool
    record_format: int
    def __init__(self, file_epoch: _Optional[int] = ..., last_index: _Optional[int] = ..., lost: _Optional[bool] = ..., record_format: _Optional[int] = ...) -> None: ...

class RoundRead(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class RoundTail(_message.Message):
    __slots__ = ("file_epoch", "last_index", "sizes", "crc")
    FILE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    file_epoch: int
    last_index: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    crc: int
    def __init__(self, file_epoch: _Optional[int] = ..., last_index: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., crc: _Optional[int] = ...) -> None: ...

class RoundInstall(_message.Message):
    __slots__ = ("epoch", "last_index", "sizes", "crc")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    last_index: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    crc: int
    def __init__(self, epoch: _Optional[int] = ..., last_index: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., crc: _Optional[int] = ...) -> None: ...

class RoundAppend(_message.Message):
    __slots__ = ("epoch", "first_index", "sizes", "crc")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_index: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    crc: int
    def __init__(self, epoch: _Optional[int] = ..., first_index: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., crc: _Optional[int] = ...) -> None: ...

class RoundStored(_message.Message):
    __slots__ = ("last_index",)
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    def __init__(self, last_index: _Optional[int] = ...) -> None: ...

class AskLeader(_message.Message):
    __slots__ = ("member_id",)
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: int
    def __init__(self, member_id: _Optional[int] = ...) -> None: ...

class LeaderBeat(_message.Message):
    __slots__ = ("epoch", "leader", "address", "heard", "member", "proof")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    leader: int
    address: str
    heard: bool
    member: int
    proof: bytes
    def __init__(self, epoch: _Optional[int] = ..., leader: _Optional[int] = ..., address: _Optional[str] = ..., heard: _Optional[bool] = ..., member: _Optional[int] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Projection(_message.Message):
    __slots__ = ("loglet_id", "epoch", "first", "start", "chains", "sequencer", "closed", "lost", "least", "lost_from")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCER_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    first: int
    start: int
    chains: _containers.RepeatedCompositeFieldContainer[Chain]
    sequencer: int
    closed: bool
    lost: _containers.RepeatedScalarFieldContainer[int]
    least: int
    lost_from: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., start: _Optional[int] = ..., chains: _Optional[_Iterable[_Union[Chain, _Mapping]]] = ..., sequencer: _Optional[int] = ..., closed: _Optional[bool] = ..., lost: _Optional[_Iterable[int]] = ..., least: _Optional[int] = ..., lost_from: _Optional[_Iterable[int]] = ...) -> None: ...

class Chain(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ChainReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ChainReplica, _Mapping]]] = ...) -> None: ...

class ChainReplica(_message.Message):
    __slots__ = ("storage_node_id", "address", "birth")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    address: str
    birth: int
    def __init__(self, storage_node_id: _Optional[int] = ..., address: _Optional[str] = ..., birth: _Optional[int] = ...) -> None: ...

class ChainRequest(_message.Message):
    __slots__ = ("kind", "loglet_id", "chain", "birth", "epoch", "position", "count", "limit", "wait_ms", "source", "before_us", "last", "salvage", "without_junk", "acknowledged", "with_acknowledged", "proof")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ChainRequest.Kind]
        WRITE: _ClassVar[ChainRequest.Kind]
        READ: _ClassVar[ChainRequest.Kind]
        BEFORE: _ClassVar[ChainRequest.Kind]
        LIST: _ClassVar[ChainRequest.Kind]
        FETCH: _ClassVar[ChainRequest.Kind]
        CHECK: _ClassVar[ChainRequest.Kind]
        TRIM: _ClassVar[ChainRequest.Kind]
        SEAL: _ClassVar[ChainRequest.Kind]
        CREATE: _ClassVar[ChainRequest.Kind]
        PULL: _ClassVar[ChainRequest.Kind]
        REMOVE: _ClassVar[ChainRequest.Kind]
        END: _ClassVar[ChainRequest.Kind]
        MEASURE: _ClassVar[ChainRequest.Kind]
        ACKNOWLEDGE: _ClassVar[ChainRequest.Kind]
    KIND_UNSPECIFIED: ChainRequest.Kind
    WRITE: ChainRequest.Kind
    READ: ChainRequest.Kind
    BEFORE: ChainRequest.Kind
    LIST: ChainRequest.Kind
    FETCH: ChainRequest.Kind
    CHECK: ChainRequest.Kind
    TRIM: ChainRequest.Kind
    SEAL: ChainRequest.Kind
    CREATE: ChainRequest.Kind
    PULL: ChainRequest.Kind
    REMOVE: ChainRequest.Kind
    END: ChainRequest.Kind
    MEASURE: ChainRequest.Kind
    ACKNOWLEDGE: ChainRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    BIRTH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_US_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SALVAGE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_JUNK_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    WITH_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    kind: ChainRequest.Kind
    loglet_id: int
    chain: int
    birth: int
    epoch: int
    position: int
    count: int
    limit: int
    wait_ms: int
    source: ChainReplica
    before_us: int
    last: int
    salvage: bool
    without_junk: bool
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    with_acknowledged: bool
    proof: bytes
    def __init__(self, kind: _Optional[_Union[ChainRequest.Kind, str]] = ..., loglet_id: _Optional[int] = ..., chain: _Optional[int] = ..., birth: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., count: _Optional[int] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ..., source: _Optional[_Union[ChainReplica, _Mapping]] = ..., before_us: _Optional[int] = ..., last: _Optional[int] = ..., salvage: _Optional[bool] = ..., without_junk: _Optional[bool] = ..., acknowledged: _Optional[_Iterable[int]] = ..., with_acknowledged: _Optional[bool] = ..., proof: _Optional[bytes] = ...) -> None: ...

class ChainAnswer(_message.Message):
    __slots__ = ("kind", "position", "end", "epoch", "extents", "more", "reason", "size", "life", "acknowledged")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ChainAnswer.Kind]
        STORED: _ClassVar[ChainAnswer.Kind]
        WRITTEN: _ClassVar[ChainAnswer.Kind]
        FOUND: _ClassVar[ChainAnswer.Kind]
        MISSING: _ClassVar[ChainAnswer.Kind]
        TRIMMED_TO: _ClassVar[ChainAnswer.Kind]
        LISTED: _ClassVar[ChainAnswer.Kind]
        FETCHED: _ClassVar[ChainAnswer.Kind]
        SEALED_AT: _ClassVar[ChainAnswer.Kind]
        DONE: _ClassVar[ChainAnswer.Kind]
        EPOCH_OVER: _ClassVar[ChainAnswer.Kind]
        REFUSED: _ClassVar[ChainAnswer.Kind]
        BEYOND: _ClassVar[ChainAnswer.Kind]
        MEASURED: _ClassVar[ChainAnswer.Kind]
        PULLED: _ClassVar[ChainAnswer.Kind]
    KIND_UNSPECIFIED: ChainAnswer.Kind
    STORED: ChainAnswer.Kind
    WRITTEN: ChainAnswer.Kind
    FOUND: ChainAnswer.Kind
    MISSING: ChainAnswer.Kind
    TRIMMED_TO: ChainAnswer.Kind
    LISTED: ChainAnswer.Kind
    FETCHED: ChainAnswer.Kind
    SEALED_AT: ChainAnswer.Kind
    DONE: ChainAnswer.Kind
    EPOCH_OVER: ChainAnswer.Kind
    REFUSED: ChainAnswer.Kind
    BEYOND: ChainAnswer.Kind
    MEASURED: ChainAnswer.Kind
    PULLED: ChainAnswer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    kind: ChainAnswer.Kind
    position: int
    end: int
    epoch: int
    extents: _containers.RepeatedCompositeFieldContainer[BlockExtent]
    more: bool
    reason: str
    size: int
    life: int
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[ChainAnswer.Kind, str]] = ..., position: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ..., extents: _Optional[_Iterable[_Union[BlockExtent, _Mapping]]] = ..., more: _Optional[bool] = ..., reason: _Optional[str] = ..., size: _Optional[int] = ..., life: _Optional[int] = ..., acknowledged: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockExtent(_message.Message):
    __slots__ = ("first", "count", "size")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    size: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class SequencerRequest(_message.Message):
    __slots__ = ("kind", "loglet_id", "epoch", "count", "position", "expected_tail", "proves")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SequencerRequest.Kind]
        NEXT: _ClassVar[SequencerRequest.Kind]
        HOLDING: _ClassVar[SequencerRequest.Kind]
        FIND_END: _ClassVar[SequencerRequest.Kind]
    KIND_UNSPECIFIED: SequencerRequest.Kind
    NEXT: SequencerRequest.Kind
    HOLDING: SequencerRequest.Kind
    FIND_END: SequencerRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAIL_FIELD_NUMBER: _ClassVar[int]
    PROVES_FIELD_NUMBER: _ClassVar[int]
    kind: SequencerRequest.Kind
    loglet_id: int
    epoch: int
    count: int
    position: int
    expected_tail: int
    proves: bool
    def __init__(self, kind: _Optional[_Union[SequencerRequest.Kind, str]] = ..., loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., count: _Optional[int] = ..., position: _Optional[int] = ..., expected_tail: _Optional[int] = ..., proves: _Optional[bool] = ...) -> None: ...

class SequencerAnswer(_message.Message):
    __slots__ = ("kind", "first", "count", "epoch", "end", "reason", "proof")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SequencerAnswer.Kind]
        HANDED_OUT: _ClassVar[SequencerAnswer.Kind]
        FORGOTTEN: _ClassVar[SequencerAnswer.Kind]
        BEYOND: _ClassVar[SequencerAnswer.Kind]
        EPOCH_OVER: _ClassVar[SequencerAnswer.Kind]
        REFUSED: _ClassVar[SequencerAnswer.Kind]
    KIND_UNSPECIFIED: SequencerAnswer.Kind
    HANDED_OUT: SequencerAnswer.Kind
    FORGOTTEN: SequencerAnswer.Kind
    BEYOND: SequencerAnswer.Kind
    EPOCH_OVER: SequencerAnswer.Kind
    REFUSED: SequencerAnswer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    kind: SequencerAnswer.Kind
    first: int
    count: int
    epoch: int
    end: int
    reason: str
    proof: bytes
    def __init__(self, kind: _Optional[_Union[SequencerAnswer.Kind, str]] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., reason: _Optional[str] = ..., proof: _Optional[bytes] = ...) -> None: ...

class ReportChain(_message.Message):
    __slots__ = ("loglet_id", "epoch", "storage_node_id")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    storage_node_id: int
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., storage_node_id: _Optional[int] = ...) -> None: ...

class ReportForgotten(_message.Message):
    __slots__ = ("loglet_id", "addresses", "ranges")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    addresses: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[CopysetRange]
    def __init__(self, loglet_id: _Optional[int] = ..., addresses: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[_Union[CopysetRange, _Mapping]]] = ...) -> None: ...

class DecidePosition(_message.Message):
    __slots__ = ("loglet_id", "epoch", "position")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    position: int
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class CopysetRecord(_message.Message):
    __slots__ = ("first", "count", "kind", "timestamp_us", "copyset", "wave", "lng", "recovered", "size")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    COPYSET_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    LNG_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    kind: int
    timestamp_us: int
    copyset: _containers.RepeatedScalarFieldContainer[int]
    wave: int
    lng: int
    recovered: int
    size: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ..., kind: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., copyset: _Optional[_Iterable[int]] = ..., wave: _Optional[int] = ..., lng: _Optional[int] = ..., recovered: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class CopysetEnd(_message.Message):
    __slots__ = ("epoch", "lng", "last", "seal", "wave", "uncertain", "found", "crashed", "absent", "lost")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LNG_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    CRASHED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lng: int
    last: int
    seal: int
    wave: int
    uncertain: bool
    found: _containers.RepeatedCompositeFieldContainer[CopysetRange]
    crashed: _containers.RepeatedScalarFieldContainer[int]
    absent: _containers.RepeatedScalarFieldContainer[int]
    lost: _containers.RepeatedCompositeFieldContainer[CopysetRange]
    def __init__(self, epoch: _Optional[int] = ..., lng: _Optional[int] = ..., last: _Optional[int] = ..., seal: _Optional[int] = ..., wave: _Optional[int] = ..., uncertain: _Optional[bool] = ..., found: _Optional[_Iterable[_Union[CopysetRange, _Mapping]]] = ..., crashed: _Optional[_Iterable[int]] = ..., absent: _Optional[_Iterable[int]] = ..., lost: _Optional[_Iterable[_Union[CopysetRange, _Mapping]]] = ...) -> None: ...

class CopysetRequest(_message.Message):
    __slots__ = ("kind", "loglet_id", "record", "draining", "lsn", "until", "epoch", "seal", "bytes_max", "without_batches", "end", "known_down", "everything", "wait_ms", "wave", "stamp", "producer_id", "sequence", "version", "shard", "recovered")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[CopysetRequest.Kind]
        STORE: _ClassVar[CopysetRequest.Kind]
        AMEND: _ClassVar[CopysetRequest.Kind]
        RELEASE: _ClassVar[CopysetRequest.Kind]
        SEAL: _ClassVar[CopysetRequest.Kind]
        DIGEST: _ClassVar[CopysetRequest.Kind]
        CLEAN: _ClassVar[CopysetRequest.Kind]
        READ: _ClassVar[CopysetRequest.Kind]
        TRIM: _ClassVar[CopysetRequest.Kind]
        FORGET: _ClassVar[CopysetRequest.Kind]
        FIND: _ClassVar[CopysetRequest.Kind]
        RESTORE: _ClassVar[CopysetRequest.Kind]
        REASSIGN: _ClassVar[CopysetRequest.Kind]
    KIND_UNSPECIFIED: CopysetRequest.Kind
    STORE: CopysetRequest.Kind
    AMEND: CopysetRequest.Kind
    RELEASE: CopysetRequest.Kind
    SEAL: CopysetRequest.Kind
    DIGEST: CopysetRequest.Kind
    CLEAN: CopysetRequest.Kind
    READ: CopysetRequest.Kind
    TRIM: CopysetRequest.Kind
    FORGET: CopysetRequest.Kind
    FIND: CopysetRequest.Kind
    RESTORE: CopysetRequest.Kind
    REASSIGN: CopysetRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DOWN_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    kind: CopysetRequest.Kind
    loglet_id: int
    record: CopysetRecord
    draining: bool
    lsn: int
    until: int
    epoch: int
    seal: int
    bytes_max: int
    without_batches: bool
    end: CopysetEnd
    known_down: _containers.RepeatedScalarFieldContainer[int]
    everything: bool
    wait_ms: int
    wave: int
    stamp: int
    producer_id: int
    sequence: int
    version: int
    shard: int
    recovered: int
    def __init__(self, kind: _Optional[_Union[CopysetRequest.Kind, str]] = ..., loglet_id: _Optional[int] = ..., record: _Optional[_Union[CopysetRecord, _Mapping]] = ..., draining: _Optional[bool] = ..., lsn: _Optional[int] = ..., until: _Optional[int] = ..., epoch: _Optional[int] = ..., seal: _Optional[int] = ..., bytes_max: _Optional[int] = ..., without_batches: _Optional[bool] = ..., end: _Optional[_Union[CopysetEnd, _Mapping]] = ..., known_down: _Optional[_Iterable[int]] = ..., everything: _Optional[bool] = ..., wait_ms: _Optional[int] = ..., wave: _Optional[int] = ..., stamp: _Optional[int] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., version: _Optional[int] = ..., shard: _Optional[int] = ..., recovered: _Optional[int] = ...) -> None: ...

class CopysetAnswer(_message.Message):
    __slots__ = ("kind", "seal", "trouble", "reason", "last_clean", "trimmed", "ends", "records", "more", "next_lsn", "released", "damaged", "lost_through", "lsns", "certain", "version", "life")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[CopysetAnswer.Kind]
        STORED: _ClassVar[CopysetAnswer.Kind]
        DONE: _ClassVar[CopysetAnswer.Kind]
        NOT_HERE: _ClassVar[CopysetAnswer.Kind]
        PREEMPTED: _ClassVar[CopysetAnswer.Kind]
        REFUSED: _ClassVar[CopysetAnswer.Kind]
        SEALED_AT: _ClassVar[CopysetAnswer.Kind]
        DIGESTED: _ClassVar[CopysetAnswer.Kind]
        OCCUPIED: _ClassVar[CopysetAnswer.Kind]
        FOUND: _ClassVar[CopysetAnswer.Kind]
        SUPERSEDED: _ClassVar[CopysetAnswer.Kind]
        DELIVERED: _ClassVar[CopysetAnswer.Kind]
    KIND_UNSPECIFIED: CopysetAnswer.Kind
    STORED: CopysetAnswer.Kind
    DONE: CopysetAnswer.Kind
    NOT_HERE: CopysetAnswer.Kind
    PREEMPTED: CopysetAnswer.Kind
    REFUSED: CopysetAnswer.Kind
    SEALED_AT: CopysetAnswer.Kind
    DIGESTED: CopysetAnswer.Kind
    OCCUPIED: CopysetAnswer.Kind
    FOUND: CopysetAnswer.Kind
    SUPERSEDED: CopysetAnswer.Kind
    DELIVERED: CopysetAnswer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_CLEAN_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_LSN_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LOST_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LSNS_FIELD_NUMBER: _ClassVar[int]
    CERTAIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    kind: CopysetAnswer.Kind
    seal: int
    trouble: str
    reason: str
    last_clean: int
    trimmed: int
    ends: _containers.RepeatedCompositeFieldContainer[CopysetEnd]
    records: _containers.RepeatedCompositeFieldContainer[CopysetRecord]
    more: bool
    next_lsn: int
    released: int
    damaged: _containers.RepeatedCompositeFieldContainer[CopysetRange]
    lost_through: int
    lsns: _containers.RepeatedScalarFieldContainer[int]
    certain: bool
    version: int
    life: int
    def __init__(self, kind: _Optional[_Union[CopysetAnswer.Kind, str]] = ..., seal: _Optional[int] = ..., trouble: _Optional[str] = ..., reason: _Optional[str] = ..., last_clean: _Optional[int] = ..., trimmed: _Optional[int] = ..., ends: _Optional[_Iterable[_Union[CopysetEnd, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[CopysetRecord, _Mapping]]] = ..., more: _Optional[bool] = ..., next_lsn: _Optional[int] = ..., released: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[CopysetRange, _Mapping]]] = ..., lost_through: _Optional[int] = ..., lsns: _Optional[_Iterable[int]] = ..., certain: _Optional[bool] = ..., version: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class CopysetRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class CopysetAppend(_message.Message):
    __slots__ = ("loglet_id", "repeated", "epoch", "expected_tail")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAIL_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    repeated: bool
    epoch: int
    expected_tail: int
    def __init__(self, loglet_id: _Optional[int] = ..., repeated: _Optional[bool] = ..., epoch: _Optional[int] = ..., expected_tail: _Optional[int] = ...) -> None: ...

class FindCopysetTail(_message.Message):
    __slots__ = ("loglet_id", "finish")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    finish: bool
    def __init__(self, loglet_id: _Optional[int] = ..., finish: _Optional[bool] = ...) -> None: ...

class CopysetTail(_message.Message):
    __slots__ = ("tail", "released", "epoch")
    TAIL_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    tail: int
    released: int
    epoch: int
    def __init__(self, tail: _Optional[int] = ..., released: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class EpochStoreRequest(_message.Message):
    __slots__ = ("kind", "loglet_id", "expected", "by", "epoch", "tail", "end", "shards", "wave", "lng")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[EpochStoreRequest.Kind]
        GET: _ClassVar[EpochStoreRequest.Kind]
        ACTIVATE: _ClassVar[EpochStoreRequest.Kind]
        SET_CLEAN: _ClassVar[EpochStoreRequest.Kind]
        CONTRADICT: _ClassVar[EpochStoreRequest.Kind]
        FINISH: _ClassVar[EpochStoreRequest.Kind]
        USE_SHORT: _ClassVar[EpochStoreRequest.Kind]
        MISS: _ClassVar[EpochStoreRequest.Kind]
        PRESUME: _ClassVar[EpochStoreRequest.Kind]
    KIND_UNSPECIFIED: EpochStoreRequest.Kind
    GET: EpochStoreRequest.Kind
    ACTIVATE: EpochStoreRequest.Kind
    SET_CLEAN: EpochStoreRequest.Kind
    CONTRADICT: EpochStoreRequest.Kind
    FINISH: EpochStoreRequest.Kind
    USE_SHORT: EpochStoreRequest.Kind
    MISS: EpochStoreRequest.Kind
    PRESUME: EpochStoreRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    LNG_FIELD_NUMBER: _ClassVar[int]
    kind: EpochStoreRequest.Kind
    loglet_id: int
    expected: int
    by: int
    epoch: int
    tail: int
    end: CopysetEnd
    shards: _containers.RepeatedScalarFieldContainer[int]
    wave: int
    lng: int
    def __init__(self, kind: _Optional[_Union[EpochStoreRequest.Kind, str]] = ..., loglet_id: _Optional[int] = ..., expected: _Optional[int] = ..., by: _Optional[int] = ..., epoch: _Optional[int] = ..., tail: _Optional[int] = ..., end: _Optional[_Union[CopysetEnd, _Mapping]] = ..., shards: _Optional[_Iterable[int]] = ..., wave: _Optional[int] = ..., lng: _Optional[int] = ...) -> None: ...

class CopysetState(_message.Message):
    __slots__ = ("loglet_id", "epoch", "sequencer", "history", "last_clean", "tail", "closed", "trimmed", "nodes", "log_stream_id", "taken", "now_us", "ends", "told", "rebuilt", "stamp", "least", "takers", "lives", "witnesses", "presumed", "chosen")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LAST_CLEAN_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    TAKERS_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    PRESUMED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    epoch: int
    sequencer: int
    history: _containers.RepeatedCompositeFieldContainer[CopysetEpochs]
    last_clean: int
    tail: int
    closed: bool
    trimmed: int
    nodes: _containers.RepeatedCompositeFieldContainer[CopysetNode]
    log_stream_id: int
    taken: bool
    now_us: int
    ends: _containers.RepeatedCompositeFieldContainer[CopysetEnd]
    told: _containers.RepeatedCompositeFieldContainer[CopysetEnd]
    rebuilt: _containers.RepeatedCompositeFieldContainer[CopysetThrough]
    stamp: int
    least: int
    takers: _containers.RepeatedCompositeFieldContainer[CopysetTaker]
    lives: _containers.RepeatedCompositeFieldContainer[CopysetLife]
    witnesses: _containers.RepeatedCompositeFieldContainer[CopysetLife]
    presumed: _containers.RepeatedCompositeFieldContainer[CopysetPresumption]
    chosen: int
    def __init__(self, loglet_id: _Optional[int] = ..., epoch: _Optional[int] = ..., sequencer: _Optional[int] = ..., history: _Optional[_Iterable[_Union[CopysetEpochs, _Mapping]]] = ..., last_clean: _Optional[int] = ..., tail: _Optional[int] = ..., closed: _Optional[bool] = ..., trimmed: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[CopysetNode, _Mapping]]] = ..., log_stream_id: _Optional[int] = ..., taken: _Optional[bool] = ..., now_us: _Optional[int] = ..., ends: _Optional[_Iterable[_Union[CopysetEnd, _Mapping]]] = ..., told: _Optional[_Iterable[_Union[CopysetEnd, _Mapping]]] = ..., rebuilt: _Optional[_Iterable[_Union[CopysetThrough, _Mapping]]] = ..., stamp: _Optional[int] = ..., least: _Optional[int] = ..., takers: _Optional[_Iterable[_Union[CopysetTaker, _Mapping]]] = ..., lives: _Optional[_Iterable[_Union[CopysetLife, _Mapping]]] = ..., witnesses: _Optional[_Iterable[_Union[CopysetLife, _Mapping]]] = ..., presumed: _Optional[_Iterable[_Union[CopysetPresumption, _Mapping]]] = ..., chosen: _Optional[int] = ...) -> None: ...

class CopysetPresumption(_message.Message):
    __slots__ = ("epoch", "by", "wave", "lng", "good")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    LNG_FIELD_NUMBER: _ClassVar[int]
    GOOD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    by: int
    wave: int
    lng: int
    good: int
    def __init__(self, epoch: _Optional[int] = ..., by: _Optional[int] = ..., wave: _Optional[int] = ..., lng: _Optional[int] = ..., good: _Optional[int] = ...) -> None: ...

class CopysetLife(_message.Message):
    __slots__ = ("epoch", "storage_node_id", "life")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    storage_node_id: int
    life: int
    def __init__(self, epoch: _Optional[int] = ..., storage_node_id: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class CopysetTaker(_message.Message):
    __slots__ = ("epoch", "storage_node_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    storage_node_id: int
    def __init__(self, epoch: _Optional[int] = ..., storage_node_id: _Optional[int] = ...) -> None: ...

class ShortCopyset(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shards: _Optional[_Iterable[int]] = ...) -> None: ...

class CopysetThrough(_message.Message):
    __slots__ = ("shard", "epoch", "lost")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    epoch: int
    lost: bool
    def __init__(self, shard: _Optional[int] = ..., epoch: _Optional[int] = ..., lost: _Optional[bool] = ...) -> None: ...

class CopysetEpochs(_message.Message):
    __slots__ = ("since", "nodeset", "locations", "replication", "short")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    NODESET_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    since: int
    nodeset: _containers.RepeatedScalarFieldContainer[int]
    locations: _containers.RepeatedScalarFieldContainer[str]
    replication: int
    short: _containers.RepeatedCompositeFieldContainer[ShortCopyset]
    def __init__(self, since: _Optional[int] = ..., nodeset: _Optional[_Iterable[int]] = ..., locations: _Optional[_Iterable[str]] = ..., replication: _Optional[int] = ..., short: _Optional[_Iterable[_Union[ShortCopyset, _Mapping]]] = ...) -> None: ...

class CopysetNode(_message.Message):
    __slots__ = ("storage_node_id", "address", "alive", "draining", "full", "full_shards")
    STORAGE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FULL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    storage_node_id: int
    address: str
    alive: bool
    draining: bool
    full: str
    full_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, storage_node_id: _Optional[int] = ..., address: _Optional[str] = ..., alive: _Optional[bool] = ..., draining: _Optional[bool] = ..., full: _Optional[str] = ..., full_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class RecoverCopyset(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: CopysetState
    def __init__(self, state: _Optional[_Union[CopysetState, _Mapping]] = ...) -> None: ...

class CopysetRebuild(_message.Message):
    __slots__ = ("events", "version", "shards", "scans", "bytes_per_s", "held")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SCANS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    events: int
    version: int
    shards: _containers.RepeatedCompositeFieldContainer[CopysetShard]
    scans: int
    bytes_per_s: int
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, events: _Optional[int] = ..., version: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[CopysetShard, _Mapping]]] = ..., scans: _Optional[int] = ..., bytes_per_s: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class CopysetShard(_message.Message):
    __slots__ = ("shard", "status")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    status: str
    def __init__(self, shard: _Optional[int] = ..., status: _Optional[str] = ...) -> None: ...

class DonorReport(_message.Message):
    __slots__ = ("version", "scans", "part_done", "shards", "left", "donor")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCANS_FIELD_NUMBER: _ClassVar[int]
    PART_DONE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    DONOR_FIELD_NUMBER: _ClassVar[int]
    version: int
    scans: int
    part_done: float
    shards: _containers.RepeatedCompositeFieldContainer[DonorShard]
    left: int
    donor: int
    def __init__(self, version: _Optional[int] = ..., scans: _Optional[int] = ..., part_done: _Optional[float] = ..., shards: _Optional[_Iterable[_Union[DonorShard, _Mapping]]] = ..., left: _Optional[int] = ..., donor: _Optional[int] = ...) -> None: ...

class DonorShard(_message.Message):
    __slots__ = ("shard", "records", "size_bytes")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    records: int
    size_bytes: int
    def __init__(self, shard: _Optional[int] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class CopysetRestored(_message.Message):
    __slots__ = ("restored",)
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    restored: _containers.RepeatedCompositeFieldContainer[LostCopies]
    def __init__(self, restored: _Optional[_Iterable[_Union[LostCopies, _Mapping]]] = ...) -> None: ...

class FillCopyset(_message.Message):
    __slots__ = ("loglet_id", "shard")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    shard: int
    def __init__(self, loglet_id: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class CopysetFilled(_message.Message):
    __slots__ = ("left",)
    LEFT_FIELD_NUMBER: _ClassVar[int]
    left: int
    def __init__(self, left: _Optional[int] = ...) -> None: ...

class CheckCopyset(_message.Message):
    __slots__ = ("loglet_id", "shard", "suspects", "epochs", "reports", "newest")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    shard: int
    suspects: _containers.RepeatedScalarFieldContainer[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    reports: bool
    newest: bool
    def __init__(self, loglet_id: _Optional[int] = ..., shard: _Optional[int] = ..., suspects: _Optional[_Iterable[int]] = ..., epochs: _Optional[_Iterable[int]] = ..., reports: _Optional[bool] = ..., newest: _Optional[bool] = ...) -> None: ...

class CopysetChecked(_message.Message):
    __slots__ = ("left", "lost", "reported")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    left: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    reported: bool
    def __init__(self, left: _Optional[int] = ..., lost: _Optional[_Iterable[int]] = ..., reported: _Optional[bool] = ...) -> None: ...

class FindCopysetLandmarks(_message.Message):
    __slots__ = ("loglet_id", "timestamp_us", "shard")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    timestamp_us: int
    shard: int
    def __init__(self, loglet_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class CopysetLandmarks(_message.Message):
    __slots__ = ("older", "young", "underreplicated", "released")
    OLDER_FIELD_NUMBER: _ClassVar[int]
    YOUNG_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    older: int
    young: int
    underreplicated: bool
    released: int
    def __init__(self, older: _Optional[int] = ..., young: _Optional[int] = ..., underreplicated: _Optional[bool] = ..., released: _Optional[int] = ...) -> None: ...

class MeasureCopyset(_message.Message):
    __slots__ = ("loglet_id", "shard", "first", "last", "clean")
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    shard: int
    first: int
    last: int
    clean: int
    def __init__(self, loglet_id: _Optional[int] = ..., shard: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., clean: _Optional[int] = ...) -> None: ...

class MeasureStream(_message.Message):
    __slots__ = ("log_stream_id", "first", "last")
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    log_stream_id: int
    first: int
    last: int
    def __init__(self, log_stream_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("through", "size")
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    through: int
    size: int
    def __init__(self, through: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class DescribeLoglet(_message.Message):
    __slots__ = ("loglet_id",)
    LOGLET_ID_FIELD_NUMBER: _ClassVar[int]
    loglet_id: int
    def __init__(self, loglet_id: _Optional[int] = ...) -> None: ...

class LogletName(_message.Message):
    __slots__ = ("log",)
    LOG_FIELD_NUMBER: _ClassVar[int]
    log: str
    def __init__(self, log: _Optional[str] = ...) -> None: ...

class AccessGrant(_message.Message):
    __slots__ = ("subject", "what", "pattern")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    subject: str
    what: str
    pattern: str
    def __init__(self, subject: _Optional[str] = ..., what: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class TokenKey(_message.Message):
    __slots__ = ("key_id", "public")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    key_id: int
    public: bytes
    def __init__(self, key_id: _Optional[int] = ..., public: _Optional[bytes] = ...) -> None: ...

class IssuedToken(_message.Message):
    __slots__ = ("token_id", "name", "allow", "created_s", "expires_s", "revoked", "key_id")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    name: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    created_s: int
    expires_s: int
    revoked: bool
    key_id: int
    def __init__(self, token_id: _Optional[str] = ..., name: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., created_s: _Optional[int] = ..., expires_s: _Optional[int] = ..., revoked: _Optional[bool] = ..., key_id: _Optional[int] = ...) -> None: ...

class Access(_message.Message):
    __slots__ = ("version", "enforced", "grants", "keys", "revoked", "tokens", "behind")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    version: int
    enforced: bool
    grants: _containers.RepeatedCompositeFieldContainer[AccessGrant]
    keys: _containers.RepeatedCompositeFieldContainer[TokenKey]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    tokens: _containers.RepeatedCompositeFieldContainer[IssuedToken]
    behind: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., enforced: _Optional[bool] = ..., grants: _Optional[_Iterable[_Union[AccessGrant, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[TokenKey, _Mapping]]] = ..., revoked: _Optional[_Iterable[str]] = ..., tokens: _Optional[_Iterable[_Union[IssuedToken, _Mapping]]] = ..., behind: _Optional[_Iterable[int]] = ...) -> None: ...

class GetAccess(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeAccess(_message.Message):
    __slots__ = ("enforce", "grant", "revoke", "revoke_tokens", "new_key", "drop_keys")
    ENFORCE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_KEY_FIELD_NUMBER: _ClassVar[int]
    DROP_KEYS_FIELD_NUMBER: _ClassVar[int]
    enforce: bool
    grant: _containers.RepeatedCompositeFieldContainer[AccessGrant]
    revoke: _containers.RepeatedCompositeFieldContainer[AccessGrant]
    revoke_tokens: _containers.RepeatedScalarFieldContainer[str]
    new_key: bool
    drop_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, enforce: _Optional[bool] = ..., grant: _Optional[_Iterable[_Union[AccessGrant, _Mapping]]] = ..., revoke: _Optional[_Iterable[_Union[AccessGrant, _Mapping]]] = ..., revoke_tokens: _Optional[_Iterable[str]] = ..., new_key: _Optional[bool] = ..., drop_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateToken(_message.Message):
    __slots__ = ("name", "allow", "lifetime_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    lifetime_s: int
    def __init__(self, name: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., lifetime_s: _Optional[int] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("token", "issued")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    token: str
    issued: IssuedToken
    def __init__(self, token: _Optional[str] = ..., issued: _Optional[_Union[IssuedToken, _Mapping]] = ...) -> None: ...
